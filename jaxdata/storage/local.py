"""A dataset in a folder, written by rename and read through memory maps, in forked children too."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import check_stop
from jaxdata.storage import zarr
from jaxdata.storage.contract import MOST_READ, Fence, missing, too_large
from jaxdata.storage.maps import MappedFolder, map_file, open_plain

_TEMPORARY = ".tmp-jaxdata-"
_SCAN_BYTES = 2**20
_LOCK_SECONDS = 60.0


def local_path(given: str | os.PathLike[str], remedy: str) -> Path:
    """A path on this machine.

    Raises:
        InputError: it is a URL, which would become a folder named `gs:`.
    """
    text = os.fspath(given)
    if re.match(r"[a-z][a-z0-9+.-]*://", text):
        raise InputError(f"{text!r} is a URL, expected a path on this machine: {remedy}")
    return Path(text).expanduser()


class LocalStore(MappedFolder):
    """A folder (see `Store`)."""

    local = True

    def __init__(self, root: str | os.PathLike[str], fence: Fence | None = None) -> None:
        self._root = Path(root).expanduser()
        super().__init__(str(self._root))
        self._fence = fence

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.url,)

    def fenced(self, fence: Fence) -> LocalStore:
        return LocalStore(self._root, fence)

    def _path(self, name: str) -> Path:
        return self._root / name

    def read(self, name: str, most: int | None = MOST_READ) -> bytes | None:
        path = self._path(name)
        try:
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                if most is not None and size > most:
                    raise too_large(str(path), size, most)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def written_at(self, name: str) -> int | None:
        return self._path(name).stat().st_mtime_ns

    def scan(self, name: str) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_SCAN_BYTES))
        try:
            with open_plain(self._path(name)) as file:
                while count := file.readinto(buffer):
                    check_stop()
                    yield buffer[:count]
        except FileNotFoundError:
            raise missing(str(self._path(name))) from None

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self.create(name) as path:
            path.write_bytes(data)

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with self._temporary(name) as path:
            yield path
            _make_durable(path)
            with self._allowed():
                path.replace(self._path(name))

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A new file beside the one of this name; it is gone in the end, unless renamed."""
        folder = self._path(name).parent
        folder.mkdir(parents=True, exist_ok=True)
        with _new_file(folder) as path:
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        swapped = False
        while not swapped:
            was = self.read(name)
            data = change(was)
            with self._temporary(name) as path:
                path.write_bytes(data or b"")
                _make_durable(path)
                with self._locked():  # for a moment: a process may be stopped that has it
                    swapped = self.read(name) == was
                    if swapped and data is not None:
                        path.replace(self._path(name))
                    elif swapped:
                        self._path(name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the lock of the folder, and the right to change it."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._root, os.O_RDONLY)
        try:
            _lock(folder, self.url)
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
                shutil.rmtree(self._path(prefix), ignore_errors=True)
            else:
                self._path(prefix).unlink(missing_ok=True)

    def sweep(self, *, below: bool = True) -> None:
        with self._allowed():
            for folder, folders, names in os.walk(self._root):
                for name in names:
                    if name.startswith(_TEMPORARY):
                        _remove_abandoned(Path(folder, name))
                folders[:] = folders if below else []

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        return zarr.write(self, name, array)

    def read_array(
        self,
        name: str,
        dtype: type[np.generic] | None = None,
        size: int | None = None,
        sha256: str | None = None,  # noqa: ARG002 - it is here
    ) -> NDArray[Any]:
        stored = zarr.describe(self, name, dtype, size)
        return zarr.joined(self, stored, [self._chunk(each, stored) for each in stored.chunks])

    def _chunk(self, name: str, stored: zarr.StoredArray) -> memoryview:
        path = self._path(name)
        with suppress(FileNotFoundError):
            size = 0 if path.is_dir() else path.stat().st_size
            if size > stored.chunk_bytes:
                raise too_large(str(path), size, stored.chunk_bytes)
        return map_file(path)


@contextmanager
def _new_file(folder: Path) -> Iterator[Path]:
    """A new file, locked until the block ends or its process does: then nobody writes it."""
    while True:
        handle, path = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        try:
            with suppress(OSError):  # a file system without locks: nothing is swept there
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:  # a sweep was not faster
                yield Path(path)
                return
        finally:
            os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove a temporary file, unless a process is writing it."""
    with suppress(OSError):  # it is renamed, locked, or somebody else's
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)


def _lock(folder: int, url: str) -> None:
    """Lock a folder; whoever has the lock gives it back in a moment, or was stopped."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise DatasetError(
                    f"{url} has been locked for {_LOCK_SECONDS:.0f} s: a process that writes there "
                    "seems to be stopped. Let it go on, or end it; then run the same command again"
                ) from None
            time.sleep(0.005)
        except OSError as error:
            raise DatasetError(
                f"{url} is on a file system that does not lock ({error.strerror}), and two "
                "processes could write there at once. Write to a local disk or a bucket, and copy "
                "the dataset; or have the file system mounted with locks (Lustre: -o "
                "flock; NFS 3: with its lock service)"
            ) from error
        else:
            return


def _make_durable(path: Path) -> None:
    """Give the file the mode that open() would have given it, and flush it to disk."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())
