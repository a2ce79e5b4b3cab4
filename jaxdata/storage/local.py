"""A dataset in a folder, written by rename and read through memory maps, in forked children too.

Maps have no descriptors. Python's `mmap` keeps one for every map (before 3.13), of which a process
often may have 1,024 only: here the C library maps. The kernel allows a process 65,530 maps
(`vm.max_map_count`), those of its libraries and threads included; here are at most `MOST_MAPS`.
Ranges of further files are read: to make room for their maps would take three times as long.
"""

import ctypes
import fcntl
import io
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import AnyArray, ByteRanges, Ints, distinct
from jaxdata.base.threads import check_stop
from jaxdata.storage import zarr
from jaxdata.storage.contract import ANY, MOST_READ, Fence, Kind, missing, too_large, truncated

MOST_MAPS = 2**14
_SMALL = 2**16  # bytes; `map_file` leaves maps to files that are not smaller
_TEMPORARY = ".tmp-jaxdata-"
_SCAN_BYTES = 2**20


class LocalStore:
    """A folder (see `Store`)."""

    local = True

    def __init__(self, root: str | os.PathLike[str], fence: Fence | None = None) -> None:
        self._root = Path(root).expanduser()
        self.url = str(self._root)
        self._fence = fence
        self._maps: dict[str, memoryview] = {}

    def __reduce__(self) -> "tuple[type[LocalStore], tuple[str]]":
        return LocalStore, (self.url,)

    def fenced(self, fence: Fence) -> "LocalStore":
        return LocalStore(self._root, fence)

    def read(self, name: str, most: int | None = MOST_READ) -> bytes | None:
        path = self._root / name
        try:
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                if most is not None and size > most:
                    raise too_large(str(path), size, most)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        needed, memory = distinct(file, len(names))
        chosen = [names[number] for number in needed.tolist()]
        try:
            maps: list[memoryview | bytes] = [self._maps[name] for name in chosen]
        except KeyError:
            found = [self._maps.get(name) or self._map(name) for name in chosen]
            maps = [data or b"" for data in found]
            memory, start, stop = memory.copy(), start.copy(), stop.copy()
            for place, number in enumerate(memory.tolist()):
                if found[number] is None:  # this process has no room for its map
                    with _opened(f"{self.url}/{chosen[number]}") as opened:
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

    def scan(self, name: str) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_SCAN_BYTES))
        try:
            with open_plain(self._root / name) as file:
                while count := file.readinto(buffer):
                    check_stop()
                    yield buffer[:count]
        except FileNotFoundError:
            raise missing(str(self._root / name)) from None

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self.create(name) as path:
            path.write_bytes(data)

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with self._temporary(name) as path:
            yield path
            _flush(path)
            with self._allowed():
                path.replace(self._root / name)

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A new file beside the one of this name; it is gone in the end, unless renamed."""
        folder = (self._root / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = _new_file(folder)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        swapped = False
        while not swapped:
            was = self.read(name)
            data = change(was)
            with self._temporary(name) as path:
                path.write_bytes(data or b"")
                _flush(path)
                with self._locked():  # for a moment: a process may be stopped that has it
                    swapped = self.read(name) == was
                    if swapped and data is not None:
                        path.replace(self._root / name)
                    elif swapped:
                        (self._root / name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the lock of the folder, and the right to change it."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._root, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
            except OSError as error:
                raise DatasetError(
                    f"{self.url} is on a file system that does not lock ({error.strerror}), and "
                    "two processes could write there at once. Write to a local disk or a bucket, "
                    "and copy the dataset; or have the file system mounted with locks (Lustre: -o "
                    "flock)"
                ) from error
            if self._fence:
                self._fence()
            yield
        finally:
            os.close(folder)

    def _allowed(self) -> AbstractContextManager[None]:
        """While a file changes: the lock is of use only where others may lose the right to."""
        return self._locked() if self._fence else nullcontext()

    def list(self, prefix: str = "") -> list[str]:
        folder = self._root / prefix.rpartition("/")[0]
        found = (path for path in folder.rglob("*") if path.is_file())
        names = (path.relative_to(self._root).as_posix() for path in found)
        return sorted(n for n in names if n.startswith(prefix) and _TEMPORARY not in n)

    def delete(self, prefix: str) -> None:
        with self._allowed():
            if prefix.endswith("/"):
                shutil.rmtree(self._root / prefix, ignore_errors=True)
            else:
                (self._root / prefix).unlink(missing_ok=True)

    def sweep(self, *, below: bool = True) -> None:
        with self._allowed():
            for path in (self._root.rglob if below else self._root.glob)(f"{_TEMPORARY}*"):
                # Otherwise it is renamed, locked, or somebody else's.
                with suppress(OSError), locked(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK):
                    path.unlink()

    def read_array(self, name: str, kind: Kind = ANY, sha256: str | None = None) -> AnyArray:
        del sha256  # it is here
        stored = zarr.describe(self, name, kind)
        parts = [np.empty(0, stored.dtype)]
        for path in (self._root / each for each in stored.chunks):
            size = path.stat().st_size if path.is_file() else 0  # before it is mapped or read
            if size > stored.chunk_bytes:
                raise too_large(str(path), size, stored.chunk_bytes)
            data = map_file(path)
            if len(data) < stored.chunk_bytes:
                raise truncated(str(path), stored.chunk_bytes)
            parts.append(np.frombuffer(data, stored.dtype))
        whole = parts[1] if len(parts) == 2 else np.concatenate(parts)
        return whole[: stored.size]


@contextmanager
def locked(path: Path, flags: int = os.O_RDONLY) -> Iterator[None]:
    """Have the lock of a file or folder; raises BlockingIOError where another process has it."""
    handle = os.open(path, flags)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _new_file(folder: Path) -> tuple[int, Path]:
    """A new file, and what holds its lock until its process ends: then nobody writes it."""
    while True:
        path = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # a sweep was not faster
            return handle, path
        os.close(handle)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


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


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """The content of a file, valid after it is deleted: mapped, or in memory if it is small.

    It is also read into memory if this process has no room for another map.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = None if size < _SMALL else _try_to_map(file, size)
        return memoryview(_read(file, 0, size)) if data is None else data


def _try_to_map(file: io.FileIO, size: int) -> memoryview | None:
    """A map of a file; None if there are too many, by our count or by the kernel's."""
    if not size:
        return memoryview(b"")
    with suppress(OSError):
        return None if len(_addresses) >= MOST_MAPS else map_handle(file.fileno(), size)
    return None


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_addresses: set[int] = set()
"""of all maps; threads change it at any time, by single operations, which are atomic"""


def map_handle(handle: int, size: int, *, writable: bool = False) -> memoryview:
    """Map the first `size` bytes of an open file, which can be closed then.

    The result and its views keep the map. What is written to it, other processes see.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size, access, mmap.MAP_SHARED, handle, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return np.asarray(_Map(address, size, writable)).data


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
