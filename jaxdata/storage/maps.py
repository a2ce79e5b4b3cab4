"""Reading local files: through maps without descriptors, or range by range where maps run out.

Python's `mmap` keeps a descriptor for every map (before 3.13), of which a process often may have
1,024 only: here the C library maps. The kernel allows a process 65,530 maps (`vm.max_map_count`),
those of its libraries and threads included; here are at most `MOST_MAPS`. Ranges of further files
are read, and one in `_PATIENCE` such files takes the place of the least recently used map: to map
each of them would take three times as long.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import stat
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import ByteRanges, Ints, distinct
from jaxdata.storage.contract import missing, truncated

MOST_MAPS = 2**14
_PATIENCE = 16
_SMALL = 2**16  # bytes; `map_file` leaves maps to files that are not smaller

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value

# Threads change both at any time, by single operations, which are atomic.
_addresses: set[int] = set()
_folders: set[weakref.ref[MappedFolder]] = set()
_turns = count(1)


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
    if _is_full():
        _drop_one()
    with _Open(os.fspath(path)) as handle:
        size = os.fstat(handle).st_size
        data = None if size < _SMALL else _try_to_map(handle, size)
        return memoryview(_read(os.fspath(path), handle, 0, size)) if data is None else data


class MappedFolder:
    """The files of a folder, of which ranges are read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        _folders.add(weakref.ref(self, _folders.discard))

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """See `Store`."""
        needed, which = distinct(file, len(names))
        chosen = [names[number] for number in needed.tolist()]
        if _is_full():
            self._mark_used(chosen)
        try:
            maps = [self._maps[name] for name in chosen]
        except KeyError:
            return self._gather_new(chosen, which, start, stop)
        return self._views(chosen, maps, which, start, stop)

    def _gather_new(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """Ranges of maps, some of them new, and of files that this process has no room to map."""
        maps = [self._maps.get(name) or self._map(name) for name in names]
        is_mapped = np.array([data is not None for data in maps])[file]
        mapped, others = np.flatnonzero(is_mapped), np.flatnonzero(~is_mapped)
        known = [data or b"" for data in maps]
        views = self._views(names, known, file[mapped], start[mapped], stop[mapped])
        if not len(others):
            return views
        copies = self._copies(names, file[others], start[others], stop[others])
        order = np.argsort(np.concatenate([mapped, others]))
        return ByteRanges.chain([views, ByteRanges.of(copies)]).take(order)

    def _mark_used(self, names: Iterable[str]) -> None:
        for name in names:
            if data := self._maps.pop(name, None):
                self._maps[name] = data

    def _map(self, name: str) -> memoryview | None:
        if _is_full() and next(_turns) % _PATIENCE == 0:
            _drop_one()
        if _is_full():
            return None
        with _Open(self._file(name)) as handle:
            data = _try_to_map(handle, os.fstat(handle).st_size)
        if data is not None:
            self._maps[name] = data
        return data

    def _views(
        self,
        names: Sequence[str],
        maps: Sequence[memoryview | bytes],
        file: Ints,
        start: Ints,
        stop: Ints,
    ) -> ByteRanges:
        """Ranges of maps."""
        beyond = np.flatnonzero(stop > np.array([len(data) for data in maps], np.int64)[file])
        if len(beyond):
            raise truncated(self._file(names[file[beyond[0]]]), int(stop[beyond[0]]))
        return ByteRanges(maps, file, start, stop)

    def _copies(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> list[bytes]:
        """Ranges of files without maps; each file is opened once."""
        copies = [b""] * len(file)
        order = np.argsort(file, kind="stable")
        columns = [array[order].tolist() for array in (file, start, stop)]
        ranges = zip(order.tolist(), *columns, strict=True)
        for number, own in groupby(ranges, key=itemgetter(1)):
            path = self._file(names[number])
            with _Open(path) as handle:
                for place, _, begin, end in own:
                    copies[place] = _read(path, handle, begin, end)
        return copies

    def _file(self, name: str) -> str:
        return f"{self.url}/{name}"


def _is_full() -> bool:
    """Whether this process has as many maps as it may."""
    return len(_addresses) >= MOST_MAPS


def _drop_one() -> None:
    """Drop the least recently used map of the folder with most of them; its views keep it."""
    folders = [folder._maps for each in list(_folders) if (folder := each()) is not None]
    with suppress(ValueError, KeyError):  # there is none, or another thread was faster
        max(folders, key=len).popitem(last=False)


def _try_to_map(handle: int, size: int) -> memoryview | None:
    """A map of a file; None if there are too many, by our count or by the kernel's."""
    if not size:
        return memoryview(b"")
    with suppress(OSError):
        return None if _is_full() else map_handle(handle, size)
    return None


def open_plain(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file to read it, unbuffered.

    Raises:
        OSError: it cannot be opened.
        DatasetError: it is a folder, or a device or a pipe, which may never end.
    """
    return io.FileIO(path, opener=lambda name, _: _open(name))


def _open(path: str | os.PathLike[str]) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise DatasetError(f"{path} is a folder, expected a file: restore it from a copy")
    raise DatasetError(
        f"{path} is a device or a pipe, not a plain file: the dataset is damaged, or made to do "
        "harm; restore it from a copy"
    )


class _Open:
    """An open file; quicker than `open`."""

    def __init__(self, path: str) -> None:
        try:
            self._handle = _open(path)
        except FileNotFoundError:
            raise missing(path) from None

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def _read(path: str, handle: int, start: int, stop: int) -> bytes:
    """Bytes `[start, stop)`; the system reads at most 2 GiB at a time."""
    pieces = []
    while start < stop:
        pieces.append(os.pread(handle, stop - start, start))
        if not pieces[-1]:
            raise truncated(path, stop)
        start += len(pieces[-1])
    return b"".join(pieces)
