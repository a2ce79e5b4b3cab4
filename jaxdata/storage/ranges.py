"""Exact ranges of the files of a bucket: near ones in one request, all requests side by side."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from jaxdata.base.ragged import Ints
from jaxdata.storage.contract import missing, overwritten
from jaxdata.storage.merged import merged
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.patience import Request

Read = Callable[[str, slice], Any]
Range = tuple[int, int, int]
"""number of the file, first byte, byte after the last"""


class ExactRanges:
    """Ranges of files, each file being the same object from the first request on.

    Args:
        read: `(name, slice)` -> a tensorstore future.
        url: of the folder of the files.
        names: of the files.
        read_ahead: the same, for what nobody waits for yet.
    """

    def __init__(self, read: Read, url: str, names: Sequence[str], read_ahead: Read) -> None:
        self._read, self._url, self._names, self._read_ahead = read, url, names, read_ahead
        self._lock = threading.Lock()
        self._generations: dict[int, bytes] = {}
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
        name, part = self._names[file], slice(start, stop)
        read = self._read_ahead if ahead else self._read
        return Request(lambda: read(name, part), f"{self._url}/{name}", part)

    def value(self, request: Request, file: int) -> bytes:
        """The answer to a request; raises DatasetError if it is not from the file as it was."""
        found = request.result()
        if found.state == "missing":
            raise missing(request.url)
        generation = bytes(found.stamp.generation)
        if self._generations.setdefault(file, generation) != generation:
            raise overwritten(request.url)
        value: bytes = found.value
        READS.add(gets=request.tries, bytes=len(value))
        return value


class Extent:
    """A range that is asked for, and its bytes when they are there."""

    def __init__(
        self, ranges: ExactRanges, file: int, start: int, stop: int, ahead: bool = False
    ) -> None:
        self._ranges, self._file, self._start = ranges, file, start
        self._request: Request | None = ranges.send(file, start, stop, ahead)
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
