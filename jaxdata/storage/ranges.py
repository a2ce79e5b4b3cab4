"""Exact ranges of the files of a bucket: near ones in one request, all requests side by side."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxdata.base.ragged import Ints
from jaxdata.storage import client
from jaxdata.storage.client import Found
from jaxdata.storage.contract import missing, overwritten
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.patience import Queue

Range = tuple[int, int, int]
"""number of the file, first byte, byte after the last"""
GAP_BYTES = 2**12
"""that lie between two ranges and are fetched rather than asked for apart"""


class Extents(NamedTuple):
    """Merged ranges; int64 (extents,) each but the last."""

    file: Ints
    start: Ints
    stop: Ints
    owner: Ints
    """(ranges,) the extent that holds each range"""


def merged(file: Ints, start: Ints, stop: Ints, gap: int = GAP_BYTES) -> Extents:
    """The fewest extents that hold some ranges, if gaps of up to `gap` bytes are closed.

    >>> found = merged(np.array([0, 1, 0]), np.array([0, 5, 8]), np.array([4, 9, 12]), 4)
    >>> [column.tolist() for column in found]
    [[0, 1], [0, 5], [12, 9], [0, 1, 0]]
    """
    order = np.lexsort((start, file))
    files, starts, stops = file[order], start[order], stop[order]
    # The furthest end so far in a file: files lie apart by more than any has bytes.
    apart = files * (int(stops.max(initial=0)) + gap + 1)
    reach = np.maximum.accumulate(apart + stops)
    begins = np.append(True, apart[1:] + starts[1:] > reach[:-1] + gap)[: len(order)]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    owner = np.empty_like(order)
    owner[order] = np.cumsum(begins) - 1
    return Extents(files[first], starts[first], (reach - apart)[last], owner)


class ExactRanges:
    """Ranges of files, each file being the same object from the first request on.

    Args:
        url: of the folder of the files.
        names: of the files.
    """

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self._url, self._names = url, names
        self._lock = threading.Lock()
        self._tags: dict[int, str] = {}
        self._ahead: OrderedDict[Range, Extent] = OrderedDict()
        self._ahead_bytes = 0

    def read(self, file: Ints, start: Ints, stop: Ints) -> list[memoryview]:
        """Some ranges; those that were asked for before may be here."""
        ranges = _listed(file, start, stop)
        with self._lock:
            known = {each: self._take(each) for each in set(ranges) & self._ahead.keys()}
        known |= self._asked([each for each in ranges if each not in known], "reading")
        return [known[each].part(*each[1:]) for each in ranges]

    def ask(self, file: Ints, start: Ints, stop: Ints, most: int) -> None:
        """Send requests for ranges that are soon read, once; the last `most` bytes of such stay."""
        ranges = _listed(file, start, stop)
        asked = self._asked([each for each in ranges if each not in self._ahead], "ahead")
        with self._lock:
            while self._ahead_bytes > most and self._ahead:
                self._take(next(iter(self._ahead)))
            self._ahead |= asked
            self._ahead_bytes += sum(stop - start for _, start, stop in asked)

    def are_asked(self, file: Ints, start: Ints, stop: Ints) -> list[bool]:
        """Which ranges were asked for, and not read since."""
        return [each in self._ahead for each in _listed(file, start, stop)]

    def _take(self, one: Range) -> Extent:
        self._ahead_bytes -= one[2] - one[1]
        return self._ahead.pop(one)

    def _asked(self, ranges: list[Range], queue: Queue) -> dict[Range, Extent]:
        """The extent that holds each range, all of them asked for."""
        found = merged(*np.array(ranges, np.int64).reshape(-1, 3).T)
        extents = [self.extent(*one, queue) for one in _listed(*found[:3])]
        return dict(zip(ranges, [extents[owner] for owner in found.owner.tolist()], strict=True))

    def extent(self, file: int, start: int, stop: int, queue: Queue = "reading") -> Extent:
        """A range that is asked for."""
        return Extent(self, f"{self._url}/{self._names[file]}", file, start, stop, queue)

    def check(self, file: int, url: str, found: Found | None) -> Found:
        """Raise DatasetError if an answer is not from a file as it was."""
        if found is None:
            raise missing(url)
        if self._tags.setdefault(file, found.facts.tag) != found.facts.tag:
            raise overwritten(url)
        return found


class Extent:
    """A range that is asked for, and its bytes when they are there."""

    def __init__(
        self, ranges: ExactRanges, url: str, file: int, start: int, stop: int, queue: Queue
    ) -> None:
        self._ranges, self._file, self._start, self._data = ranges, file, start, b""
        self._request = client.get(url, start, stop, queue) if start < stop else None

    @property
    def data(self) -> bytes:
        """All of it, as soon as it is there."""
        if (request := self._request) is not None:
            found = self._ranges.check(self._file, request.url, request.result())
            READS.add(gets=request.tries, bytes=len(found.value))
            self._data, self._request = found.value, None
        return self._data

    def part(self, start: int, stop: int) -> memoryview:
        """A part of it."""
        return memoryview(self.data)[start - self._start : stop - self._start]


def _listed(file: Ints, start: Ints, stop: Ints) -> list[Range]:
    return list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
