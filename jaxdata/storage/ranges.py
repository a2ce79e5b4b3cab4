"""Ranges of objects: parts of one version, exact ranges of many files, files that are read ahead.

Of the files of a dataset near ranges are fetched in one request, all requests side by side. An
input, in a bucket or on a web server, is read as a file.
"""

import io
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from jaxdata.base.ragged import Ints, merged
from jaxdata.storage import client
from jaxdata.storage.client import Found, Queue
from jaxdata.storage.contract import changed, missing
from jaxdata.storage.pages.read_counts import READS

Range = tuple[int, int, int]
"""number of the file, first byte, byte after the last"""
BLOCK = 2**20
"""bytes that are asked for at a time"""
_AHEAD = 16
"""blocks that are asked for before they are needed"""
_KEPT = 16
"""blocks that were read and are kept"""
_BUFFER = 2**18
GAP_BYTES = 2**12
"""that lie between two ranges and are fetched rather than asked for apart"""


class Part:
    """A part of an object, which is asked for at once, and its bytes when they are there.

    Args:
        url: of the object.
        start: its first byte.
        stop: the byte after its last.
        tags: what tells the version of each object, by URL; where it is not known, that of the
            first answer counts.
        queue: whose turn it waits for.
    """

    def __init__(
        self, url: str, start: int, stop: int, tags: dict[str, str], queue: Queue = "reading"
    ) -> None:
        self._url, self._start, self._tags, self._data = url, start, tags, b""
        self._request = client.get(url, start, stop, queue) if start < stop else None

    @property
    def data(self) -> bytes:
        """All of it, as soon as it is there.

        Raises:
            StorageError: the object is gone, ends before, or is not the one that it was.
        """
        if (request := self._request) is not None:
            found: Found | None = request.result()
            if found is None and self._url not in self._tags:
                raise missing(request.url)
            tag = found and found.facts.tag
            if found is None or self._tags.setdefault(self._url, found.facts.tag) != tag:
                raise changed(request.url)
            READS.add(gets=request.tries, bytes=len(found.value))
            self._data, self._request = found.value, None
        return self._data

    def part(self, start: int, stop: int) -> memoryview:
        """Some of its bytes, as the object numbers them."""
        return memoryview(self.data)[start - self._start : stop - self._start]

    def cancel(self) -> None:
        """Wait for no answer."""
        if self._request:
            self._request.cancel()


class ExactRanges:
    """Ranges of files, each file being the same object from the first request on.

    Args:
        url: of the folder of the files.
        names: of the files.
    """

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self._urls = [f"{url}/{name}" for name in names]
        self._tags: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ahead: OrderedDict[Range, Part] = OrderedDict()
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

    def _take(self, one: Range) -> Part:
        self._ahead_bytes -= one[2] - one[1]
        return self._ahead.pop(one)

    def _asked(self, ranges: list[Range], queue: Queue) -> dict[Range, Part]:
        """The extent that holds each range, all of them asked for."""
        *extents, owner = merged(*np.array(ranges, np.int64).reshape(-1, 3).T, gap=GAP_BYTES)
        parts = [self.part(*one, queue) for one in _listed(*extents)]
        return dict(zip(ranges, [parts[number] for number in owner.tolist()], strict=True))

    def part(self, file: int, start: int, stop: int, queue: Queue = "reading") -> Part:
        """A range that is asked for."""
        return Part(self._urls[file], start, stop, self._tags, queue)


def in_turn(parts: Iterator[Part], at_once: int) -> Iterator[bytes]:
    """The bytes of parts in order, of which so many are under way."""
    under_way = deque(islice(parts, at_once))
    while under_way:
        data = under_way.popleft().data
        under_way.extend(islice(parts, 1))
        yield data


def open_object(url: str, size: int, tag: str, ahead_to: int | None = None) -> io.BufferedReader:
    """The version of an object with this tag as a file; see `RangedFile`."""
    tags = {url: tag}
    return RangedFile(lambda start, stop: Part(url, start, stop, tags), size, ahead_to).buffered()


class RangedFile(io.RawIOBase):
    """A file over the ranges of an object; at most 32 MiB of it are in memory.

    Blocks are asked for by their number. Whoever reads the next block of one that was read goes
    through the file, and the more blocks one after the other, the more are asked for ahead, up to
    `_AHEAD`. Several that read it at several places share these, as columns of a table do.

    Args:
        ask: asks for bytes `[start, stop)`, as `Part` does.
        size: its bytes.
        ahead_to: what is after this byte is not asked for before it is read; None for the end.
    """

    def __init__(
        self, ask: Callable[[int, int], Any], size: int, ahead_to: int | None = None
    ) -> None:
        self._ask, self._size = ask, size
        self._last = ((size if ahead_to is None else min(size, ahead_to)) - 1) // BLOCK
        self._position = 0
        self._waiting: dict[int, Any] = {}
        self._read: OrderedDict[int, bytes] = OrderedDict()  # the last last

    def buffered(self) -> io.BufferedReader:
        """The same with a buffer, as `open` returns it."""
        return io.BufferedReader(self, _BUFFER)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(22, "a negative position")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer to the end of the block at most."""
        number, begin = divmod(self._position, BLOCK)
        count = min(len(buffer), BLOCK - begin, self._size - self._position)
        if count <= 0:
            return 0
        buffer[:count] = memoryview(self._block(number))[begin : begin + count]
        self._position += count
        return int(count)

    def _block(self, number: int) -> bytes:
        if number not in self._read:
            self._wait_for(number)
            self._look_ahead(number)
            self._read[number] = self._waiting.pop(number).data
        self._read.move_to_end(number)
        if len(self._read) > _KEPT:
            self._read.popitem(last=False)
        return self._read[number]

    def _look_ahead(self, number: int) -> None:
        """Ask for the blocks after one that is read for the first time, if it follows others."""
        run = next(run for run in count() if number - run - 1 not in self._read)
        if not run and len(self._waiting) > _AHEAD:  # for a reader that went elsewhere
            for one in list(self._waiting)[: _AHEAD // 2]:
                self._waiting.pop(one).cancel()
        ahead = min(2**run - 1, _AHEAD, _AHEAD + 1 - len(self._waiting))
        for one in range(number + 1, min(number + ahead, self._last) + 1):
            self._wait_for(one)

    def _wait_for(self, number: int) -> None:
        if number not in self._waiting and number not in self._read:
            start = number * BLOCK
            self._waiting[number] = self._ask(start, min(start + BLOCK, self._size))

    def close(self) -> None:
        """Ask for nothing more."""
        for each in self._waiting.values():
            each.cancel()
        self._waiting.clear()
        self._read.clear()
        super().close()


def _listed(file: Ints, start: Ints, stop: Ints) -> list[Range]:
    return list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
