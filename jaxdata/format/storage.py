"""The one file that knows where bytes live: a folder on disk, or an object store.

A :class:`Store` holds named byte strings and one-dimensional arrays below a root. Names are
relative and use ``/``. :class:`LocalStore` maps files into memory and never calls tensorstore to
read (tensorstore aborts in a forked child); :class:`RemoteStore` is tensorstore's KvStore.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError, InputError

__all__ = ["ByteReader", "LocalStore", "RemoteStore", "Store", "open_store"]

_CHUNK = 2**26  # elements of an array in one file, so that a reader maps a few large files
_TEMPORARY = ".tmp-"


class ByteReader(Protocol):
    """Ranged reads of one stored byte string."""

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes ``[start, stop)``; where the file is local, a read-only view of its mapping.

        Raises DatasetError where the file is missing or ends before ``stop``.
        """
        ...


class Store(Protocol):
    """Named bytes and arrays below one root: the contract of every place a dataset can be in."""

    url: str
    local: bool
    """Whether reads are plain memory maps, safe in a forked process."""

    def read(self, name: str) -> bytes | None:
        """The whole content, or None where nothing has this name."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write the whole content at once: a reader sees all of it or what was before."""
        ...

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace the content by ``change(content)``; safe between processes."""
        ...

    def create(self, name: str) -> Any:
        """A context manager that gives a local path to write to, published when it ends well."""
        ...

    def open(self, name: str) -> ByteReader:
        """Ranged reads of one name."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Sorted names that begin with ``prefix``."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove one name, or with a final ``/`` everything below it; absent is no error."""
        ...

    def sweep(self, prefix: str) -> None:
        """Remove what interrupted writers left below ``prefix/``; nobody may be writing there."""
        ...

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write a one-dimensional array as zarr3, little-endian, uncompressed, in large chunks."""
        ...

    def read_array(self, name: str) -> NDArray[Any]:
        """The array, read-only; where it is local and in one chunk, a view of the mapped file."""
        ...


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the root of a dataset: a local path, ``gs://…``, ``s3://…`` or ``memory://…``."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if scheme == "file":
        return LocalStore(rest)
    if scheme in ("gs", "s3", "memory"):
        return RemoteStore(text)
    raise InputError(f"cannot open {text!r}: expected a local path, gs://, s3:// or memory://")


class LocalStore:
    """A folder. Written by rename, read through memory maps."""

    local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).expanduser()
        self.url = str(self._root)

    def _path(self, name: str) -> Path:
        return self._root / name

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

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

    def open(self, name: str) -> ByteReader:
        return _MappedFile(self._path(name))

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
        for path in self._path(prefix).rglob(f"{_TEMPORARY}*"):
            path.unlink(missing_ok=True)

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        self.delete(f"{name}/")
        _write_zarr({"driver": "file", "path": f"{self._path(name).resolve()}/"}, array)

    def read_array(self, name: str) -> NDArray[Any]:
        shape, chunk, dtype = _zarr_layout(self.read(f"{name}/zarr.json"), f"{self.url}/{name}")
        parts = [
            self.open(f"{name}/c/{number}").read(0, chunk * dtype.itemsize).view(dtype)
            for number in range(math.ceil(shape / chunk))
        ]
        joined = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, dtype)])
        return joined[:shape]


class RemoteStore:
    """An object store behind tensorstore's KvStore."""

    local = False

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def kvstore(self) -> Any:
        """The tensorstore KvStore of the root."""
        import tensorstore

        return tensorstore.KvStore.open(f"{self.url}/", context=_context()).result()

    def read(self, name: str) -> bytes | None:
        result = self.kvstore.read(name).result()
        return None if result.state == "missing" else result.value

    def write(self, name: str, data: bytes) -> None:
        self.kvstore.write(name, data).result()

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            self.write(name, path.read_bytes())

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        while True:
            result = self.kvstore.read(name).result()
            data = change(None if result.state == "missing" else result.value)
            # Compare and swap: an empty generation in the answer means that somebody was faster.
            expected = result.stamp.generation
            if self.kvstore.write(name, data, if_equal=expected).result().generation:
                return

    def open(self, name: str) -> ByteReader:
        return _RemoteFile(self, name)

    def list(self, prefix: str = "") -> list[str]:
        keys = (key.decode() for key in self.kvstore.list().result())
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, prefix: str) -> None:
        names = self.list(prefix) if prefix.endswith("/") else [prefix]
        for name in names:
            self.kvstore.write(name, None).result()

    def sweep(self, prefix: str) -> None:
        """Nothing to do: an object appears whole or not at all."""

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        self.delete(f"{name}/")
        _write_zarr(f"{self.url}/{name}/", array, context=_context())

    def read_array(self, name: str) -> NDArray[Any]:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": f"{self.url}/{name}/"}
        _zarr_layout(self.read(f"{name}/zarr.json"), f"{self.url}/{name}")
        array = tensorstore.open(spec, context=_context()).result().read().result()
        return np.asarray(array)


class _MappedFile:
    """A local file, mapped once; views of it stay valid when the reader is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = _map(file.fileno())
        except FileNotFoundError:
            raise DatasetError(
                f"{path} is missing: the dataset is not whole; convert it again or restore the file"
            ) from None

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        if stop > len(self._bytes):
            raise _truncated(str(self._path), stop)
        return self._bytes[start:stop]


def _map(handle: int) -> NDArray[np.uint8]:
    size = os.fstat(handle).st_size
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(handle, size, prot=mmap.PROT_READ), np.uint8)


class _RemoteFile:
    def __init__(self, store: RemoteStore, name: str) -> None:
        self._store, self._name = store, name

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        kvstore, url = self._store.kvstore, f"{self._store.url}/{self._name}"
        try:
            result = kvstore.read(self._name, byte_range=slice(start, stop)).result()
        except ValueError as error:
            if "OUT_OF_RANGE" not in str(error):
                raise
            raise _truncated(url, stop) from None
        if result.state == "missing":
            raise DatasetError(f"{url} is missing: the dataset is not whole")
        return np.frombuffer(result.value, np.uint8)


def _truncated(name: str, stop: int) -> DatasetError:
    return DatasetError(
        f"{name} ends before byte {stop}: the file is truncated; convert it again or restore it"
    )


_contexts: dict[int, Any] = {}


def _context() -> Any:
    """The tensorstore context of this process: it must not be used across a fork."""
    import tensorstore

    process = os.getpid()
    if process not in _contexts:
        if _contexts:
            raise DatasetError(
                "remote data cannot be read in a forked process: start workers with 'spawn' "
                "(torch: DataLoader(multiprocessing_context='spawn'))"
            )
        _contexts[process] = tensorstore.Context()
    return _contexts[process]


def _make_durable(path: Path) -> None:
    """Give the file the mode that open() would have given it, and push it to the disk."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_zarr(kvstore: Any, array: NDArray[Any], context: Any = None) -> None:
    import tensorstore

    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    chunk = max(1, min(len(array), _CHUNK))
    metadata = {
        "shape": [len(array)],
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    # Chunks that hold only zeros are files like the others: a reader maps every chunk.
    spec["store_data_equal_to_fill_value"] = True
    opened = tensorstore.open(spec, create=True, delete_existing=True, context=context).result()
    opened.write(little).result()


def _zarr_layout(metadata: bytes | None, url: str) -> tuple[int, int, np.dtype[Any]]:
    """(elements, elements a chunk, dtype) of an array that we wrote."""
    if metadata is None:
        raise DatasetError(f"{url} is missing: the dataset is not whole; convert it again")
    fields = json.loads(metadata)
    chunk = fields["chunk_grid"]["configuration"]["chunk_shape"][0]
    return fields["shape"][0], chunk, np.dtype(fields["data_type"]).newbyteorder("<")
