"""Fetching into this host's cache what a run is going to read first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.progress import Advance
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.bucket_reads import MOST_OPEN
from jaxdata.feed.loader import BatchIterator
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.map_datasets import known_rows
from jaxdata.storage.pages.page_cache import PageCache, page_cache, read_counts
from jaxdata.storage.pages.paged_files import PagedFiles

_AT_ONCE = 8
"""batches that are looked up in a pass"""
_MOST_WAITING = 256
"""pages"""
_TICK = 0.02
_NO_CACHE = "there is no cache to fetch into: let JAXDATA_CACHE name a folder that you may write"


@dataclass(frozen=True)
class Warmed:
    """What the first batches of a host need, and what of it had to be fetched."""

    steps: int
    """batches whose pages are all here"""
    asked_steps: int
    """that were asked for, at most those of the run"""
    pages: int
    """that they need"""
    bytes: int
    """of these"""
    gets: int
    """requests for parts of files that were sent, columns of the index included"""
    fetched_bytes: int
    seconds: float
    skipped: tuple[str, ...]
    """sources that a run reads by exact ranges, which no cache keeps"""

    @property
    def full(self) -> bool:
        """Whether the cache, not the run or its steps, was the end."""
        return self.steps < self.asked_steps


def warm(
    open_rows: Callable[[], Any],
    *,
    shard: tuple[int, int] = (0, 1),
    steps: int | None = None,
    progress: Advance = lambda _done, _total: None,
    **settings: Any,
) -> Warmed:
    """Fetch the index and the first pages that a loader with the same arguments reads.

    Args:
        open_rows: opens the rows, as `jaxdata.mix` gives them; the index is fetched meanwhile.
        shard: `(i, n)`, this host and the number of hosts.
        steps: batches; None for as many as the cache holds.
        progress: called with (bytes of pages that are here, bytes of those asked for so far).
        settings: as for `jaxdata.Loader`: `batch_size`, `skip_rows`, `drop_remainder`.

    Raises:
        InputError: no row is read from a bucket, there is no cache, or it cannot be written.
        DatasetError: the bucket refuses.
    """
    began, before = time.perf_counter(), read_counts()
    given = LoaderSection.checked(**settings)
    run = BatchIterator(open_rows(), given, lambda size, _row: HostPlacement(size, shard))
    sources, cache = _far_files(run.rows), page_cache()
    if cache is None:
        raise InputError(_NO_CACHE)
    room = int(cache.most * MOST_OPEN) - cache.column_bytes()
    asked: dict[PagedFiles, set[int]] = {files: set() for files in sources.values()}
    whole = done = pages = 0

    def told(left: int) -> None:
        here = whole * max(pages - left, 0) // max(pages, 1)
        progress(min(here, room), min(whole, room))

    wanted = len(run.schedule) if steps is None else min(steps, len(run.schedule))
    maker, spans = run.maker(), run.schedule.spans()
    while some := list(islice(spans, min(_AT_ONCE if done else 1, wanted - done))):
        for files, ranges in maker.far_ranges(some):
            needed = files.pages_of(ranges)
            files.prefetch_pages(needed)
            new = set(needed.tolist()) - asked[files]
            asked[files] |= new
            whole, pages = whole + sum(map(files.size_of, new)), pages + len(new)
        if all(len(have) == files.page_count for files, have in asked.items() if files.by_pages):
            done = wanted  # there is no other page that any batch could need
            break
        if whole > room or cache.refuses:
            break
        done += len(some)
        _wait(cache, _MOST_WAITING, told)
    _wait(cache, 0, told)
    for files, have in asked.items():
        files.fetch_missing(have)
    if cache.refusal:
        raise InputError(cache.refusal)
    counts, seconds = read_counts() - before, time.perf_counter() - began
    skipped = tuple(name for name, files in sources.items() if not files.by_pages)
    return Warmed(done, wanted, pages, whole, counts.gets, counts.bytes, seconds, skipped)


def _wait(cache: PageCache, most: int, told: Callable[[int], None]) -> None:
    """Wait until at most so many pages are on their way."""
    while True:
        left = cache.left
        told(left)
        if left <= most:
            return
        time.sleep(_TICK)


def _far_files(rows: Any) -> dict[str, PagedFiles]:
    """The files of each source that lies in a bucket."""
    known = known_rows(rows)
    sections = known.table.sections() if known and known.table else ()
    found = {
        name: documents.pages
        for _, part in sections
        for name, one in part.sources.items()
        if (documents := one.documents[0]).is_far
    }
    if not found:
        raise InputError(
            "nothing to fetch: no source of this run lies in a bucket, and local files are mapped "
            "where they are"
        )
    return found
