"""Inputs behind URLs, in buckets and on web servers, as files: only one version of each is read.

An input has a size and a version, other than a file of a dataset. A `RangedFile` reads ahead where
it is read in order.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.storage import client
from jaxdata.storage.client import Found
from jaxdata.storage.contract import Truncated
from jaxdata.storage.urls import public_url

BLOCK = 2**20
"""bytes that are asked for at a time"""
_AHEAD = 16
"""blocks that are asked for before they are needed"""
_KEPT = 16
"""blocks that were read and are kept"""
_BUFFER = 2**18


class Part:
    """A part of the version of an object that has a tag, which is asked for.

    Raises:
        InputError: by `result`: the object is another one now, or cannot be read.
    """

    def __init__(self, url: str, start: int, stop: int, tag: str) -> None:
        self._url, self._tag = url, tag
        self._request = client.get(url, start, stop) if start < stop else None

    def result(self) -> bytes:
        if self._request is None:
            return b""
        try:
            found: Found | None = self._request.result()
        except Truncated:
            found = None
        if found is None or self._tag not in ("", found.facts.tag):
            raise InputError(
                f"{public_url(self._url)} changed while it was read: let it be as it is and run "
                "the same command again, which reads it anew"
            )
        return found.value

    def cancel(self) -> None:
        if self._request:
            self._request.cancel()


def open_object(url: str, size: int, tag: str, ahead_to: int | None = None) -> io.BufferedReader:
    """The version of an object with this tag as a file; see `RangedFile`."""
    return RangedFile(lambda start, stop: Part(url, start, stop, tag), size, ahead_to).buffered()


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
        self._depths: dict[int, int] = {}  # block -> blocks to ask for ahead of it
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
            follows = number - 1 in self._read
            self._wait_for(number)
            self._look_ahead(number, follows)
            self._read[number] = self._waiting.pop(number).result()
        self._read.move_to_end(number)
        if len(self._read) > _KEPT:
            oldest, _ = self._read.popitem(last=False)
            self._depths.pop(oldest, None)
        return self._read[number]

    def _look_ahead(self, number: int, follows: bool) -> None:
        """Ask for the blocks after one that is read for the first time, if it follows another."""
        depth = min(2 * self._depths.pop(number - 1, 0) + follows, _AHEAD)
        self._depths[number] = depth
        if not follows and len(self._waiting) > _AHEAD:  # for a reader that went elsewhere
            for one in list(self._waiting)[: _AHEAD // 2]:
                self._waiting.pop(one).cancel()
        room = _AHEAD + 1 - len(self._waiting)
        for one in range(number + 1, min(number + depth, self._last, number + room) + 1):
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
