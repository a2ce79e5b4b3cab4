"""Memory for batches that is used again when nothing refers to it any more.

Fresh arrays of this size come from the kernel page by page, which costs as much as filling them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Slabs"]

_MOST_FREE = 8


class Slabs:
    """A pool of byte arrays; safe between threads.

    Args:
        allocate: makes a writable buffer of so many bytes.
        most_free: how many are kept for another time; None for all.

    >>> slabs = Slabs()
    >>> array = slabs.take(64)
    >>> part, memory = array[:8], array.ctypes.data
    >>> del array
    >>> slabs.take(64).ctypes.data == memory  # a part of it is still in use
    False
    >>> del part
    >>> slabs.take(64).ctypes.data == memory
    True
    """

    def __init__(
        self, allocate: Callable[[int], Any] = bytearray, most_free: int | None = _MOST_FREE
    ) -> None:
        self._allocate = allocate
        self._free: deque[Any] = deque(maxlen=most_free)
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """An array of `size` bytes, its content anything.

        It and every view of it keep the memory; when the last of them is gone, it is free.
        """
        memory = self._find(size)
        # A view of an array made here refers to that array, not to the memory below it.
        whole = np.frombuffer(memory, np.uint8)
        self._held[id(memory)] = weakref.ref(whole, partial(self._release, memory))
        return whole

    def _find(self, size: int) -> Any:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(memory) == size:
                return memory
            self._free.appendleft(memory)
        return self._allocate(size)

    def _release(self, memory: Any, _: Any) -> None:
        del self._held[id(memory)]
        self._free.append(memory)
