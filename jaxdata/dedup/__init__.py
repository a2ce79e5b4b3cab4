"""Duplicates: found, dropped by a view, and accounted for.

From what a user names to a view:

- `api`, `settings`: `deduplicate`, and what counts as a copy.
- `compared`, `benchmark_files`, `members`: sources and files, their documents numbered.
- `member_texts`, `hashing/`: documents read, and hashed.
- `search_stages`, `dedup_job`, `dedup_worker`, `workbench`: units of work, and a unit in a worker.
- `signature_units`, `candidate_units`, `pair_units`: the three kinds of units.
- `sorted_runs`, `components`: sorting on disk, and clusters of pairs.
- `survivors`, `outcome`, `account_of_copies`: who stays, the view, and its account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxdata.lazy import resolver

if TYPE_CHECKING:
    from jaxdata.dedup.account_of_copies import DedupReport
    from jaxdata.dedup.api import deduplicate
    from jaxdata.dedup.settings import DedupSettings

__all__ = ["DedupReport", "DedupSettings", "deduplicate"]

_PUBLIC = {
    "DedupReport": "jaxdata.dedup.account_of_copies",
    "DedupSettings": "jaxdata.dedup.settings",
    "deduplicate": "jaxdata.dedup.api",
}


__getattr__ = resolver(__name__, _PUBLIC)
