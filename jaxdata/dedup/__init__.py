"""Duplicates: found, dropped by a view, and accounted for.

A search numbers the documents of sources and benchmarks, hashes them, groups equal hashes,
compares likely pairs, chooses who stays in each cluster, and writes a view: nothing is rewritten.

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
