"""Reading local files: through maps without descriptors, or range by range where maps run out.

Python's `mmap` keeps a descriptor for every map (before 3.13), of which a process often may have
1,024 only: here the C library maps. The kernel allows a process 65,530 maps (`vm.max_map_count`),
those of its libraries and threads included; here are at most `MOST_MAPS`. Ranges of further files
are read: to make room for their maps would take three times as long.
"""

import ctypes
import io
import mmap
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import ByteRanges, Ints, distinct
from jaxdata.storage.contract import missing, truncated

MOST_MAPS = 2**14
_SMALL = 2**16  # bytes; `map_file` leaves maps to files that are not smaller

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value

_addresses: set[int] = set()
"""of all maps; threads change it at any time, by single operations, which are atomic"""


class _Map:
    """Owns a map, which ends with it."""

    __slots__ = ("_address", "_size", "_writable")

    def __init__(self, address: int, size: int, writable: bool) -> None:
        self._address, self._size, self._writable = address, size, writable
        _addresses.add(address)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        place = self._address, not self._writable
        return {"version": 3, "typestr": "|u1", "shape": (self._size,), "data": place}

    # Default arguments are still there when the interpreter ends and globals are not.
    def __del__(self, unmap: Any = _libc.munmap, addresses: set[int] = _addresses) -> None:
        addresses.discard(self._address)  # first: then another thread may get this address
        unmap(self._address, self._size)


def map_handle(handle: int, size: int, *, writable: bool = False) -> memoryview:
    """Map the first `size` bytes of an open file, which can be closed then.

    The result and its views keep the map. What is written to it, other processes see.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size, access, mmap.MAP_SHARED, handle, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return np.asarray(_Map(address, size, writable)).data


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """The content of a file, valid after it is deleted: mapped, or in memory if it is small.

    It is also read into memory if this process has no room for another map.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = None if size < _SMALL else _try_to_map(file, size)
        return memoryview(_read(file, 0, size)) if data is None else data


class MappedFolder:
    """The files of a folder, of which ranges are read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._maps: dict[str, memoryview] = {}

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """See `Store`."""
        needed, memory = distinct(file, len(names))
        chosen = [names[number] for number in needed.tolist()]
        try:
            maps: list[memoryview | bytes] = [self._maps[name] for name in chosen]
        except KeyError:
            found = [self._maps.get(name) or self._map(name) for name in chosen]
            maps = [b"" if data is None else data for data in found]
            absent = np.array([data is None for data in found])[memory]
            if absent.any():  # this process has no room for their maps
                memory, start, stop = memory.copy(), start.copy(), stop.copy()
                for place in np.flatnonzero(absent).tolist():
                    with _opened(f"{self.url}/{chosen[memory[place]]}") as opened:
                        data = _read(opened, int(start[place]), int(stop[place]))
                    memory[place], start[place], stop[place] = len(maps), 0, len(data)
                    maps.append(data)
        beyond = np.flatnonzero(stop > np.array([len(data) for data in maps], np.int64)[memory])
        if len(beyond):
            raise truncated(f"{self.url}/{chosen[memory[beyond[0]]]}", int(stop[beyond[0]]))
        return ByteRanges(maps, memory, start, stop)

    def _map(self, name: str) -> memoryview | None:
        with _opened(f"{self.url}/{name}") as file:
            data = _try_to_map(file, os.fstat(file.fileno()).st_size)
        if data is not None:
            self._maps[name] = data
        return data


def _try_to_map(file: io.FileIO, size: int) -> memoryview | None:
    """A map of a file; None if there are too many, by our count or by the kernel's."""
    if not size:
        return memoryview(b"")
    with suppress(OSError):
        return None if len(_addresses) >= MOST_MAPS else map_handle(file.fileno(), size)
    return None


def open_plain(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file to read it, unbuffered.

    Raises:
        OSError: it cannot be opened.
        DatasetError: it is a folder, or a device or a pipe, which may never end.
    """
    what = "a device or a pipe"
    try:  # opening a pipe would wait for its writer
        file = io.FileIO(path, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NONBLOCK))
    except IsADirectoryError:
        what = "a folder"
    else:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise DatasetError(
        f"{path} is {what}, not a plain file: the dataset is damaged, or made to do harm; restore "
        "it from a copy"
    )


def _opened(path: str | os.PathLike[str]) -> io.FileIO:
    try:
        return open_plain(path)
    except FileNotFoundError:
        raise missing(os.fspath(path)) from None


def _read(file: io.FileIO, start: int, stop: int) -> bytes:
    """Bytes `[start, stop)`; the system reads at most 2 GiB at a time."""
    pieces = []
    while start < stop:
        pieces.append(os.pread(file.fileno(), stop - start, start))
        if not pieces[-1]:
            raise truncated(str(file.name), stop)
        start += len(pieces[-1])
    return b"".join(pieces)
