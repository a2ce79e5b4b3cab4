"""What every place a dataset can be in must do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError

__all__ = ["Store", "Views", "missing", "truncated", "unwritable"]

Ints = NDArray[np.int64]


class Views(NamedTuple):
    """Stretches of memories, by number: no object for each, which Python's collector would visit.

    View *k* is `memories[memory[k]][start[k]:stop[k]]`, in bytes.
    """

    memories: Sequence[memoryview | bytes]
    memory: Ints
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, memories: Sequence[memoryview | bytes]) -> Views:
        """Each memory whole."""
        sizes = np.fromiter(map(len, memories), np.int64, len(memories))
        return cls(memories, np.arange(len(memories)), np.zeros_like(sizes), sizes)

    @classmethod
    def cut(cls, memory: memoryview | bytes, sizes: Ints) -> Views:
        """One memory, cut into views of `sizes` bytes from its beginning on."""
        stop = np.cumsum(sizes)
        return cls([memory], np.zeros_like(stop), stop - sizes, stop)

    @classmethod
    def chain(cls, parts: Sequence[Views]) -> Views:
        """Several, one after the other."""
        before = np.cumsum([0, *(len(part.memories) for part in parts)]).tolist()
        numbers = [part.memory + n for part, n in zip(parts, before, strict=False)]
        nothing = np.empty(0, np.int64)
        return cls(
            [memory for part in parts for memory in part.memories],
            np.concatenate([nothing, *numbers]),
            np.concatenate([nothing, *(part.start for part in parts)]),
            np.concatenate([nothing, *(part.stop for part in parts)]),
        )

    def take(self, chosen: Ints | slice) -> Views:
        """Some of the views."""
        return Views(self.memories, self.memory[chosen], self.start[chosen], self.stop[chosen])

    def inserted(self, at: Ints, sizes: Ints, memory: bytes) -> Views:
        """With views of another memory's first bytes, so many, before those numbered `at`."""
        new = at + np.arange(len(at))
        before = np.bincount(at, minlength=len(self.start) + 1)[:-1]
        old = np.arange(len(self.start)) + np.cumsum(before)
        numbers, start, stop = (np.zeros(len(old) + len(new), np.int64) for _ in range(3))
        numbers[old], start[old], stop[old] = self.memory, self.start, self.stop
        numbers[new], stop[new] = len(self.memories), sizes
        return Views([*self.memories, memory], numbers, start, stop)

    def each(self) -> list[memoryview | bytes]:
        """The views themselves."""
        memories = self.memories
        columns = (self.memory.tolist(), self.start.tolist(), self.stop.tolist())
        return [memories[m][a:b] for m, a, b in zip(*columns, strict=True)]

    def join(self) -> bytes:
        """A copy of all, end to end."""
        return b"".join(self.each())


class Store(Protocol):
    """Named bytes and arrays below one root."""

    url: str
    local: bool
    """Whether reads are plain memory maps, safe in a forked process."""

    def read(self, name: str) -> bytes | None:
        """The whole content, or None where nothing has this name."""
        ...

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> Views:
        """Bytes `[start[k], stop[k])` of the file `names[file[k]]`, for every *k*.

        Where the files are local, views of their memory maps.

        Raises:
            DatasetError: a file is missing, or ends before a range does.
        """
        ...

    def pieces(self, name: str) -> Iterator[memoryview | bytes]:
        """The content from beginning to end, in pieces that stay valid until the next one.

        Nothing is mapped: where the disk cannot read a file, this raises OSError, while touching
        a mapped page would end the process.

        Raises:
            DatasetError: the file is missing.
        """
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write the whole content at once: a reader sees all of it or what was before."""
        ...

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace the content by `change(content)`; safe between processes.

        `change` may be called again where another process was faster.
        """
        ...

    def create(self, name: str) -> AbstractContextManager[Path]:
        """A local path to write to with any library, published when the block ends well."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Sorted names that begin with `prefix`."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove one name, or with a final `/` everything below it; absent is no error."""
        ...

    def sweep(self, prefix: str) -> None:
        """Remove what killed writers left directly below `prefix/`; none may be writing there."""
        ...

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        """Write a one-dimensional array as zarr3, little-endian, uncompressed, in large chunks.

        Returns:
            The sha256 of its values as they are stored, in hex, whatever the chunks.
        """
        ...

    def read_array(self, name: str) -> NDArray[Any]:
        """The array, read-only; where it is local and in one chunk, a view of the mapped file."""
        ...


def missing(url: str) -> DatasetError:
    """The error for a file that should be there."""
    return DatasetError(
        f"{url} is missing: the dataset is not whole; convert it again or restore the file"
    )


def truncated(url: str, stop: int) -> DatasetError:
    """The error for a file that is shorter than the index says."""
    return DatasetError(
        f"{url} ends before byte {stop}: the file is truncated; convert it again or restore it"
    )


def unwritable(path: str | os.PathLike[str], error: Exception) -> OSError:
    """What a library's own error for a file that it cannot write would be in Python.

    >>> unwritable("a", RuntimeError("write() failed: No space left on device"))
    OSError(28, 'No space left on device')
    """
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in str(error):
            return OSError(number, os.strerror(number), os.fspath(path))
    return OSError(errno.EIO, f"cannot be written ({error})", os.fspath(path))
