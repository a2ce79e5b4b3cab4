"""What a loader does about rows in a bucket: pages or exact ranges, and what that costs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxdata.base.errors import log
from jaxdata.rows.lanes import DEAR, downloads
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.reading import read_for
from jaxdata.rows.table import RowTable
from jaxdata.storage.pages.page_cache import page_cache
from jaxdata.storage.pages.paged_files import PagedFiles

MOST_OPEN = 7 / 8
"""of the cache: the rest is for pages fetched ahead"""


def choose_pages(tables: Mapping[str, RowTable], share: float, extras: Sequence[str] = ()) -> None:
    """Have sources read by pages as far as the cache holds what is open; the others by ranges.

    Args:
        tables: one epoch of each source, by name.
        share: of the open lanes that this host meets.
        extras: arrays that are read with the tokens.
    """
    cache = page_cache()
    room = 0 if cache is None else int(cache.most * MOST_OPEN)
    needs = [need for name, table in tables.items() for need in _needs(name, table, share, extras)]
    for need, name, pages in sorted(needs, key=lambda each: each[0]):
        if pages.fit(need, room):
            room -= need
        elif cache is not None:
            log.warning(
                "%s: its rows are read from %d MB at a time, of which a cache of %d MB has no room "
                "left: they are fetched by exact ranges, with far more requests. "
                "JAXDATA_CACHE_BYTES sets the size of the cache, and chunks (pack.chunk_bytes) "
                "need little of it",
                *(name, need // 10**6, cache.most // 10**6),
            )


def _needs(
    name: str, table: RowTable, share: float, extras: Sequence[str]
) -> Iterator[tuple[int, str, PagedFiles]]:
    """Bytes that are open at a time, of what is read of a source in a bucket."""
    documents, opened = table.documents[0], table.open_bytes
    for each in read_for(documents, extras):
        if each.is_far:
            most, item = each.pages.size, each.dtype.itemsize / documents.dtype.itemsize
            need = most if opened is None else min(most, int(opened * item * share))
            yield need, name, each.pages


def pages_are_behind() -> bool:
    """Whether pages that are wanted now come too late, as where many lanes begin at once."""
    cache = page_cache()
    return cache is not None and cache.is_behind


def warn_of_downloads(tables: Iterable[RowTable], hosts: int) -> None:
    """Say what hosts download, where it is far more than the dataset, and what to change.

    Args:
        tables: one epoch of each source.
        hosts: that share a batch, each with a cache of its own.
    """
    extra, size, worst = 0.0, 0, (0.0, "", "")
    for table in tables:
        if isinstance(table, PackedRows) and table.settings.shuffle and table.documents[0].is_far:
            chunks, stored = table.settings.chunk_bytes or 0, table.stored_bytes
            more = stored * (downloads(hosts, table.lanes, chunks) - 1)
            add = f"lanes: {2 ** (hosts - 1).bit_length()}" if chunks else f"chunk_bytes: {2**20}"
            extra, size = extra + more, size + stored
            worst = max(worst, (more, table.documents[0].name, add), key=lambda each: each[0])
    if extra > (DEAR - 1) * size:
        log.warning(
            "%d hosts download %.1f times the bytes of the dataset, through pages of which each "
            "host fetches its own, most of all for %s: add %s to the section pack of the config, "
            "or to the arguments of jaxdata.pack",
            *(hosts, 1 + extra / size, *worst[1:]),
        )
