"""Fetching into this host's cache what a run is going to read first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.progress import Advance
from jaxdata.feed.batches import BatchMaker, HostPlacement
from jaxdata.feed.bucket_reads import MOST_OPEN
from jaxdata.feed.loader import BatchIterator
from jaxdata.feed.schedule import Span
from jaxdata.feed.settings import LoaderSection
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
    sources = _far_files(run.rows)
    wanted = len(run.schedule) if steps is None else min(steps, len(run.schedule))
    pages = _Pages([*sources.values()], progress)
    done = pages.ask(run.maker(), run.schedule.spans(), wanted)
    pages.wait(0)
    for files, asked in pages.asked.items():
        files.fetch_missing(asked)
    pages.check()
    counts = read_counts() - before
    return Warmed(
        steps=done,
        asked_steps=wanted,
        pages=pages.count,
        bytes=pages.bytes,
        gets=counts.gets,
        fetched_bytes=counts.bytes,
        seconds=time.perf_counter() - began,
        skipped=tuple(name for name, files in sources.items() if not files.by_pages),
    )


class _Pages:
    """Pages that are asked for, until the cache is full."""

    def __init__(self, files: Sequence[PagedFiles], progress: Advance) -> None:
        cache = page_cache()
        if cache is None:
            raise InputError(
                "there is no cache to fetch into: let JAXDATA_CACHE name a folder that you may "
                "write"
            )
        self._cache, self._progress = cache, progress
        self._room = int(cache.most * MOST_OPEN) - cache.column_bytes()
        self.asked: dict[PagedFiles, set[int]] = {each: set() for each in files}
        self.bytes = 0

    @property
    def count(self) -> int:
        """Of all files."""
        return sum(map(len, self.asked.values()))

    def ask(self, maker: BatchMaker, spans: Iterator[Span], wanted: int) -> int:
        """The number of batches of those wanted whose pages fit into the cache."""
        done = 0
        while some := list(islice(spans, min(_AT_ONCE if done else 1, wanted - done))):
            for files, ranges in maker.far_ranges(some):
                pages = files.pages_of(ranges)
                files.prefetch_pages(pages)
                new = set(pages.tolist()) - self.asked[files]
                self.asked[files] |= new
                self.bytes += sum(map(files.size_of, new))
            far = [(files, len(pages)) for files, pages in self.asked.items() if files.by_pages]
            if all(count == files.page_count for files, count in far):
                return wanted  # there is no other page that any batch could need
            if self.bytes > self._room or self._cache.refuses:
                break
            done += len(some)
            self.wait(_MOST_WAITING)
        return done

    def wait(self, most: int) -> None:
        """Wait until at most so many pages are on their way."""
        while True:
            left = self._cache.left
            here = self.bytes * max(self.count - left, 0) // max(self.count, 1)
            self._progress(min(here, self._room), min(self.bytes, self._room))
            if left <= most:
                return
            time.sleep(_TICK)

    def check(self) -> None:
        """Raise InputError where the cache takes no more."""
        if self._cache.refusal:
            raise InputError(self._cache.refusal)


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
