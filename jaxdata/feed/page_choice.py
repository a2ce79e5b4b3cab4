"""Which sources in buckets are read by pages: those whose open pages the cache can hold."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

from jaxdata.documents.base import far, side_arrays
from jaxdata.format.storage import PagedFiles, page_cache
from jaxdata.rows.table import RowTable

_log = logging.getLogger("jaxdata")
MOST_OPEN = 7 / 8
"""of the cache: the rest is for pages fetched ahead"""


def choose_pages(tables: Mapping[str, RowTable], share: float, sides: Collection[str] = ()) -> None:
    """Have sources read by pages as far as the cache holds what is open; the others by ranges.

    Args:
        tables: one epoch of each source, by name.
        share: of the open lanes that this host meets.
        sides: the side arrays that are read with the tokens.
    """
    cache = page_cache()
    room = 0 if cache is None else int(cache.most * MOST_OPEN)
    wanted = [
        (*need, name) for name, table in tables.items() for need in _needs(table, share, sides)
    ]
    for need, pages, name in sorted(wanted, key=lambda each: each[0]):
        if pages is None:
            continue
        pages.by_pages = need <= room
        pages.dealt_by_pages = need < pages.size
        if pages.by_pages:
            room -= need
        elif cache is not None:
            _log.warning(
                "%s: its rows are read from %d MB at a time, of which a cache of %d MB has no room "
                "left: they are fetched by exact ranges, with far more requests. "
                "JAXDATA_CACHE_BYTES sets the size of the cache, and chunks (pack.chunk_bytes) "
                "need little of it",
                name,
                need // 10**6,
                cache.most // 10**6,
            )


def _needs(
    table: RowTable, share: float, sides: Collection[str]
) -> Iterator[tuple[int, PagedFiles | None]]:
    """Bytes that are open at a time, of a source in a bucket and of its side arrays."""
    documents, opened = table.documents[0], table.open_bytes
    bucket = far(documents)
    found = [(None if bucket is None else bucket.pages, documents.dtype)]
    arrays = side_arrays(documents)
    found += [(arrays[name].pages, arrays[name].dtype) for name in sides]
    for pages, dtype in found:
        if pages is None:
            yield 0, None
            continue
        item = dtype.itemsize / documents.dtype.itemsize
        yield (pages.size if opened is None else min(pages.size, int(opened * item * share))), pages
