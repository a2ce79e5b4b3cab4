"""Duplicates: found, dropped by a view, and accounted for.

A search hashes documents in units of work, finds equal hashes by sorted runs on disk, compares the
pairs, and joins them to clusters, of which one document stays.

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
