"""Duplicates: found, dropped by a view, and accounted for.

From what a user names to a view:

- `api`, `settings`: `deduplicate`, and what counts as a copy.
- `compared`, `members`: sources and files, their documents numbered.
- `member_texts`, `kept_signatures`: documents read, and what their conversion hashed.
- `search_stages`, `units/`: a search from beginning to end, and its units of work.
- `benchmarks/`: which documents have benchmarks in them, and where.
- `components`, `survivors`, `outcome`: clusters of pairs, who stays, and the view.
- `repeated_spans`: what has no loss, or is cut, in documents that stay.
- `account_of_copies`, `side_by_side`, `span_examples`: counts, and examples.
- `leaks`, `exact_leaks`: what a preview says of them.
- `one_pass`: `jaxdata.convert`, which can make a view at once.

Public names resolve when first used: a worker starts sooner without what only its parent needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxdata.base.lazy import resolver

if TYPE_CHECKING:
    from jaxdata.dedup.api import deduplicate
    from jaxdata.dedup.outcome import DedupReport
    from jaxdata.dedup.settings import DedupSettings

__all__ = ["DedupReport", "DedupSettings", "deduplicate"]

_PUBLIC = {
    "DedupReport": "jaxdata.dedup.outcome",
    "DedupSettings": "jaxdata.dedup.settings",
    "deduplicate": "jaxdata.dedup.api",
}


__getattr__ = resolver(__name__, _PUBLIC)
