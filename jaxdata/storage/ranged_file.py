"""A file over the ranges of an object: it can seek, and reads ahead where it is read in order.

Blocks are asked for by their number. Whoever reads the next block of one that was read goes
through the file, and the more blocks one after the other, the more are asked for ahead, up to
`_AHEAD`. Several that read it at several places share these, as columns of a table do.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from jaxdata.base.threads import Threads, waited

BLOCK = 2**20
"""Bytes that are asked for at a time."""
_AHEAD = 16
"""Blocks that are asked for before they are needed."""
_KEPT = 16
"""Blocks that were read and are kept."""
_BUFFER = 2**18

Read = Callable[[int, int], bytes]
"""Bytes `[start, stop)` of an object; several threads call it."""


class RangedFile(io.RawIOBase):
    """An object of `size` bytes as a raw binary file; at most 32 MiB of it are in memory.

    Args:
        read: returns a range of it.
        size: its bytes.
        ahead_to: what is after this byte is not asked for before it is read; None for the end.
    """

    def __init__(self, read: Read, size: int, ahead_to: int | None = None) -> None:
        self._read, self._size = read, size
        self._ahead_to = size if ahead_to is None else min(size, ahead_to)
        self._position = 0
        self._threads = Threads(_AHEAD + 1)
        self._blocks: dict[int, Future[bytes]] = {}
        self._ahead: dict[int, int] = {}  # block -> blocks to ask for ahead of it
        self._done: OrderedDict[int, None] = OrderedDict()  # blocks that were read, the last last

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
        if number not in self._done:
            self._look_ahead(number)
        asked = self._asked(number)
        self._done[number] = None
        self._done.move_to_end(number)
        try:
            data: bytes = waited(asked)
            return data
        finally:
            self._forget()

    def _look_ahead(self, number: int) -> None:
        """Ask for the blocks after one that is read for the first time, if it follows another."""
        follows = number - 1 in self._done
        depth = min(2 * self._ahead.pop(number - 1, 0) + follows, _AHEAD)
        self._ahead[number] = depth
        self._asked(number)
        waiting = [one for one in self._blocks if one not in self._done]
        if not follows and len(waiting) > _AHEAD:  # for a reader that went elsewhere
            for one in waiting[: _AHEAD // 2]:
                self._blocks.pop(one).cancel()
        last = min(number + depth, (self._ahead_to - 1) // BLOCK)
        for one in range(number + 1, min(last, number + _AHEAD - len(waiting) + 1) + 1):
            self._asked(one)

    def _asked(self, number: int) -> Future[bytes]:
        if number not in self._blocks:
            start = number * BLOCK
            stop = min(start + BLOCK, self._size)
            self._blocks[number] = self._threads.submit(self._read, start, stop)
        return self._blocks[number]

    def _forget(self) -> None:
        """Keep the blocks that were read last."""
        while len(self._done) > _KEPT:
            number, _ = self._done.popitem(last=False)
            del self._blocks[number]
            self._ahead.pop(number, None)

    def close(self) -> None:
        """Ask for nothing more."""
        self._threads.stop()
        self._blocks.clear()
        self._done.clear()
        super().close()
