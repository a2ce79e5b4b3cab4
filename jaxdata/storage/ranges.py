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
from jaxdata.storage.patience import Request

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
        self.ahead_bytes = 0

    def fetch(self, file: int, start: int, stop: int) -> bytes:
        """One range, now."""
        return Extent(self, file, start, stop).data

    def read(self, file: Ints, start: Ints, stop: Ints) -> list[memoryview]:
        """Some ranges; those that were asked for before may be here."""
        ranges = list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
        with self._lock:
            known = {each: self._take(each) for each in set(ranges) & self._ahead.keys()}
        new = [number for number, each in enumerate(ranges) if each not in known]
        asked = self._ask(file[new], start[new], stop[new])
        known |= {ranges[number]: extent for number, extent in zip(new, asked, strict=True)}
        return [known[each].part(*each[1:]) for each in ranges]

    def ask(self, file: Ints, start: Ints, stop: Ints) -> None:
        """Send requests for ranges that are soon read, once."""
        ranges = list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
        new = [number for number, each in enumerate(ranges) if each not in self._ahead]
        asked = self._ask(file[new], start[new], stop[new], ahead=True)
        with self._lock:
            for number, extent in zip(new, asked, strict=True):
                self._ahead[ranges[number]] = extent
                self.ahead_bytes += ranges[number][2] - ranges[number][1]

    def are_asked(self, file: Ints, start: Ints, stop: Ints) -> list[bool]:
        """Which ranges were asked for, and not read since."""
        ranges = zip(file.tolist(), start.tolist(), stop.tolist(), strict=True)
        return [each in self._ahead for each in ranges]

    def forget(self, most: int) -> None:
        """Keep at most so many bytes of what was asked for: the last."""
        with self._lock:
            while self.ahead_bytes > most and self._ahead:
                self._take(next(iter(self._ahead)))

    def _take(self, one: Range) -> Extent:
        self.ahead_bytes -= one[2] - one[1]
        return self._ahead.pop(one)

    def _ask(self, file: Ints, start: Ints, stop: Ints, ahead: bool = False) -> list[Extent]:
        """The extent that holds each range, all of them asked for."""
        found = merged(file, start, stop)
        columns = (found.file.tolist(), found.start.tolist(), found.stop.tolist())
        extents = [Extent(self, *one, ahead=ahead) for one in zip(*columns, strict=True)]
        return [extents[number] for number in found.owner.tolist()]

    def send(self, file: int, start: int, stop: int, ahead: bool = False) -> Request:
        """A request for a range."""
        url = f"{self._url}/{self._names[file]}"
        return client.get(url, start, stop, "ahead" if ahead else "reading")

    def value(self, request: Request, file: int) -> bytes:
        """The answer to a request; raises DatasetError if it is not from the file as it was."""
        found: Found | None = request.result()
        if found is None:
            raise missing(request.url)
        if self._tags.setdefault(file, found.facts.tag) != found.facts.tag:
            raise overwritten(request.url)
        READS.add(gets=request.tries, bytes=len(found.value))
        return found.value


class Extent:
    """A range that is asked for, and its bytes when they are there."""

    def __init__(
        self, ranges: ExactRanges, file: int, start: int, stop: int, ahead: bool = False
    ) -> None:
        self._ranges, self._file, self._start = ranges, file, start
        self._request = ranges.send(file, start, stop, ahead) if start < stop else None
        self._data = b""

    @property
    def data(self) -> bytes:
        """All of it, as soon as it is there."""
        if (request := self._request) is not None:
            self._data = self._ranges.value(request, self._file)
            self._request = None
        return self._data

    def part(self, start: int, stop: int) -> memoryview:
        """A part of it."""
        return memoryview(self.data)[start - self._start : stop - self._start]
