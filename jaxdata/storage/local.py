"""A dataset in a folder, written by rename and read through memory maps, in forked children too."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.threads import check_stop
from jaxdata.storage import zarr
from jaxdata.storage.contract import MOST_READ, Fence, missing, too_large, truncated
from jaxdata.storage.maps import MappedFolder, map_file, open_plain

_TEMPORARY = ".tmp-jaxdata-"
_SCAN_BYTES = 2**20


class LocalStore(MappedFolder):
    """A folder (see `Store`)."""

    local = True

    def __init__(self, root: str | os.PathLike[str], fence: Fence | None = None) -> None:
        self._root = Path(root).expanduser()
        super().__init__(str(self._root))
        self._fence = fence

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

    def read_array(
        self,
        name: str,
        dtype: type[np.generic] | None = None,
        size: int | None = None,
        sha256: str | None = None,  # noqa: ARG002 - it is here
    ) -> NDArray[Any]:
        stored = zarr.describe(self, name, dtype, size)
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
