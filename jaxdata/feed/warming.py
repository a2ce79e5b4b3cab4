"""Fetching into this host's cache what a run is going to read first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.progress import Advance
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.feed.batches import MOST_OPEN, BatchMaker, HostPlacement
from jaxdata.feed.schedule import Span
from jaxdata.rows.map_datasets import known_rows
from jaxdata.storage.pages.page_cache import page_cache, read_counts
from jaxdata.storage.pages.paged_files import PagedFiles

_AT_ONCE = 8
"""batches that are looked up in a pass"""
_MOST_WAITING = 256
"""pages"""
_TICK = 0.02


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
    batch_size: int | Sequence[tuple[int, int]],
    shard: tuple[int, int] = (0, 1),
    skip_rows: Sequence[tuple[int, int]] = (),
    drop_remainder: bool = False,
    steps: int | None = None,
    progress: Advance = lambda _done, _total: None,
) -> Warmed:
    """Fetch the index and the first pages that a loader with the same arguments reads.

    Args:
        open_rows: opens the rows, as `jaxdata.mix` gives them; the index is fetched meanwhile.
        batch_size: as for `jaxdata.Loader`, like the next three.
        shard: `(i, n)`, this host and the number of hosts.
        skip_rows: ranges that are never read.
        drop_remainder: as for `jaxdata.Loader`.
        steps: batches; None for as many as the cache holds.
        progress: called with (bytes of pages that are here, bytes of those asked for so far).

    Raises:
        InputError: no row is read from a bucket, there is no cache, or it cannot be written.
        DatasetError: the bucket refuses.
    """
    began, before = time.perf_counter(), read_counts()
    run = BatchIterator(
        open_rows(),
        lambda size, _row: HostPlacement(size, shard),
        batch_size=batch_size,
        skip_rows=skip_rows,
        drop_remainder=drop_remainder,
    )
    sources = _far_files(run.rows)
    total = len(run.schedule)
    wanted = total if steps is None else min(steps, total)
    job = _Warming([*sources.values()], run.maker(), progress)
    done = job.run(islice(run.schedule.spans(), wanted), wanted)
    counts = read_counts() - before
    return Warmed(
        done,
        wanted,
        job.pages,
        job.bytes,
        counts.gets,
        counts.bytes,
        time.perf_counter() - began,
        tuple(name for name, pages in sources.items() if not pages.by_pages),
    )


class _Warming:
    """Pages that are asked for, batch by batch, until the cache is full."""

    def __init__(self, files: Sequence[PagedFiles], maker: BatchMaker, progress: Advance) -> None:
        cache = page_cache()
        if cache is None:
            raise InputError(
                "there is no cache to fetch into: let JAXDATA_CACHE name a folder that you may "
                "write"
            )
        self._cache, self._maker, self._progress = cache, maker, progress
        self._room = int(cache.most * MOST_OPEN) - cache.column_bytes()
        self._asked: dict[PagedFiles, set[int]] = {each: set() for each in files}
        self.bytes = 0
        """of the pages that the batches need"""

    @property
    def pages(self) -> int:
        """Their number."""
        return sum(map(len, self._asked.values()))

    def run(self, spans: Iterator[Span], total: int) -> int:
        """The number of batches whose pages are here, of `total`."""
        done, size = 0, 1
        while some := list(islice(spans, size)):
            self._ask(some)
            if self._all_asked():
                done = total
                break
            if self.bytes > self._room or self._cache.refuses:
                break
            done, size = done + len(some), _AT_ONCE
            self._wait(_MOST_WAITING)
        self._wait(0)
        for files, pages in self._asked.items():
            files.fetch_missing(pages)
        if self._cache.refusal:
            raise InputError(self._cache.refusal)
        return done

    def _ask(self, spans: Sequence[Span]) -> None:
        for files, ranges in self._maker.far_ranges(spans):
            pages = files.pages_of(ranges)
            files.prefetch_pages(pages)
            new = set(pages.tolist()) - self._asked[files]
            self._asked[files] |= new
            self.bytes += sum(map(files.size_of, new))

    def _all_asked(self) -> bool:
        """Whether there is no other page that any batch could need."""
        return all(
            not files.by_pages or len(pages) == files.page_count
            for files, pages in self._asked.items()
        )

    def _wait(self, most: int) -> None:
        """Wait until at most so many pages are on their way."""
        while True:
            left = self._cache.left
            here = self.bytes * max(self.pages - left, 0) // max(self.pages, 1)
            self._progress(min(here, self._room), min(self.bytes, self._room))
            if left <= most:
                return
            time.sleep(_TICK)


def _far_files(rows: Any) -> dict[str, PagedFiles]:
    """The files of each source that lies in a bucket."""
    known = known_rows(rows)
    table, found = known.table if known else None, {}
    for _, part in table.sections() if table else ():
        for name, one in part.sources.items():
            if (documents := one.documents[0]).is_far:
                found[name] = documents.pages
    if not found:
        raise InputError(
            "nothing to fetch: no source of this run lies in a bucket, and local files are mapped "
            "where they are"
        )
    return found
