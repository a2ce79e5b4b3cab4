"""Whole numbers from process to process: a system call for what a pickled message takes five."""

from __future__ import annotations

import os
from array import array

__all__ = ["NumberReader", "NumberWriter"]

_KIND = "i"  # 32 bits, signed
_MOST = 4096 // array(_KIND).itemsize  # PIPE_BUF: as many are never torn


class NumberReader:
    """The end of a pipe that numbers come out of.

    Args:
        handle: its descriptor, which belongs to this object from now on.
    """

    def __init__(self, handle: int) -> None:
        self._file = os.fdopen(handle, "rb", buffering=0)
        self.close = self._file.close

    def read(self) -> array[int]:
        """Wait until there are some and take them all; none when nobody is left to write any."""
        return array(_KIND, self._file.read(_MOST * array(_KIND).itemsize) or b"")


class NumberWriter:
    """The end of a pipe that they go into.

    Args:
        handle: its descriptor, which belongs to this object from now on.
    """

    def __init__(self, handle: int) -> None:
        self._file = os.fdopen(handle, "wb", buffering=0)
        self.close = self._file.close

    def write(self, *numbers: int) -> None:
        """Send numbers; raises BrokenPipeError when nobody is left to read them."""
        for first in range(0, len(numbers), _MOST):
            self._file.write(array(_KIND, numbers[first : first + _MOST]))
