"""Inputs behind URLs, in buckets and on web servers, as files: only one version of each is read.

An input has a size and a version, other than a file of a dataset. A `RangedFile` reads ahead where
it is read in order.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

from jaxdata.storage.ranges import Part

BLOCK = 2**20
"""bytes that are asked for at a time"""
_AHEAD = 16
"""blocks that are asked for before they are needed"""
_KEPT = 16
"""blocks that were read and are kept"""
_BUFFER = 2**18


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

    def tell(self) -> int:
        return self._position

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
