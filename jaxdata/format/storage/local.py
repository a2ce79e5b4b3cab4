"""A dataset in a folder: written by rename, read through memory maps.

Reading never calls tensorstore, which aborts in a forked child.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import zarr
from jaxdata.format.storage.contract import Ints, Views, missing, truncated

__all__ = ["LocalStore", "map_file"]

_TEMPORARY = ".tmp-"
_PIECE_BYTES = 2**20


class LocalStore:
    """A folder (see `Store`)."""

    local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).expanduser()
        self.url = str(self._root)
        self._maps: dict[str, memoryview] = {}

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.url,)

    def _path(self, name: str) -> Path:
        return self._root / name

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> Views:
        needed = np.bincount(file, minlength=1) > 0
        maps = [self._map(names[number]) for number in np.flatnonzero(needed).tolist()]
        memory = (np.cumsum(needed) - 1)[file]
        beyond = np.flatnonzero(stop > np.array([len(map) for map in maps], np.int64)[memory])
        if len(beyond):
            short = beyond[0]
            raise truncated(str(self._path(names[int(file[short])])), int(stop[short]))
        return Views(maps, memory, start, stop)

    def _map(self, name: str) -> memoryview:
        if name not in self._maps:
            self._maps[name] = map_file(self._path(name))
        return self._maps[name]

    def pieces(self, name: str) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        try:
            with self._path(name).open("rb", buffering=0) as file:
                while size := file.readinto(buffer):
                    yield buffer[:size]
        except FileNotFoundError:
            raise missing(str(self._path(name))) from None

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as path:
            path.write_bytes(data)

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        final = self._path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=final.parent, prefix=_TEMPORARY)
        os.close(handle)
        try:
            yield Path(temporary)
            _make_durable(Path(temporary))
            Path(temporary).replace(final)
        finally:
            with suppress(FileNotFoundError):
                Path(temporary).unlink()

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        import fcntl

        self._root.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._root, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self.write(name, change(self.read(name)))
        finally:
            os.close(folder)

    def list(self, prefix: str = "") -> list[str]:
        folder = self._root / prefix.rpartition("/")[0]
        found = (path for path in folder.rglob("*") if path.is_file())
        names = (path.relative_to(self._root).as_posix() for path in found)
        return sorted(n for n in names if n.startswith(prefix) and _TEMPORARY not in n)

    def delete(self, prefix: str) -> None:
        if prefix.endswith("/"):
            shutil.rmtree(self._path(prefix), ignore_errors=True)
        else:
            self._path(prefix).unlink(missing_ok=True)

    def sweep(self, prefix: str) -> None:
        for path in self._path(prefix).glob(f"{_TEMPORARY}*"):
            path.unlink(missing_ok=True)

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        self.delete(f"{name}/")
        return zarr.write({"driver": "file", "path": f"{self._path(name).resolve()}/"}, array)

    def read_array(self, name: str) -> NDArray[Any]:
        size, dtype, chunks, chunk_bytes = zarr.layout(self, name)
        parts = [np.frombuffer(self._chunk(chunk, chunk_bytes), dtype) for chunk in chunks]
        joined = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, dtype)])
        return joined[:size]

    def _chunk(self, name: str, size: int) -> memoryview:
        data = map_file(self._path(name))
        if len(data) < size:
            raise truncated(str(self._path(name)), size)
        return data


def map_file(path: Path) -> memoryview:
    """A file mapped into memory; views of it stay valid when it is deleted."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    except FileNotFoundError:
        raise missing(str(path)) from None


def _make_durable(path: Path) -> None:
    """Give the file the mode that open() would have given it, and push it to the disk."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())
