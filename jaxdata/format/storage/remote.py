"""A dataset in an object store, through tensorstore's KvStore."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.background import check_stop
from jaxdata.format.storage import zarr
from jaxdata.format.storage.contract import MOST_READ, Fence, Unwritten, missing, too_large
from jaxdata.format.storage.kvstores import (
    Purpose,
    context_for,
    kvstore_spec,
    open_kvstore,
    process_context,
    reason,
)
from jaxdata.format.storage.objects.uploads import upload
from jaxdata.format.storage.pages.far_column import FarColumn
from jaxdata.format.storage.pages.index_columns import cached_column
from jaxdata.format.storage.patience import Request
from jaxdata.format.storage.ranges import ExactRanges
from jaxdata.format.storage.streamed import scan_object
from jaxdata.ragged import ByteRanges, Ints

_MOST_COPIED = 2**26
"""bytes of an array that is copied whole; of a longer one spans are fetched"""
_TOGETHER = 64  # objects that are deleted at a time
_TICK = 0.05  # seconds after which a wait looks whether it is in vain


class RemoteStore:
    """The objects below a URL (see `Store`)."""

    local = False

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        self.url = url.rstrip("/")
        self._fence = fence
        self._opened: dict[Purpose, Any] = {}

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[str]]:
        return RemoteStore, (self.url,)

    def fenced(self, fence: Fence) -> RemoteStore:
        return RemoteStore(self.url, fence)

    def _kvstore(self, purpose: Purpose = "reading") -> Any:
        """Opened once, as each time would cost more than a request; refused in a forked process."""
        process_context()
        if purpose not in self._opened:
            self._opened[purpose] = open_kvstore(self.url, purpose)
        return self._opened[purpose]

    def read(self, name: str, most: int | None = MOST_READ) -> bytes | None:
        result = self._request(name).result()
        if result.state == "missing":
            return None
        value: bytes = result.value
        if most is not None and len(value) > most:
            raise too_large(f"{self.url}/{name}", len(value), most)
        return value

    def exists(self, name: str) -> bool:
        kvstore = self._kvstore()
        asked = Request(lambda: kvstore.read(name, byte_range=slice(0, 0)), f"{self.url}/{name}")
        return bool(asked.result().state != "missing")

    def written_at(self, name: str) -> int | None:  # noqa: ARG002
        return None

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        return ByteRanges.of(self.ranges(names).read(file, start, stop))

    def ranges(self, names: Sequence[str]) -> ExactRanges:
        """Ranges of files of these names."""
        return ExactRanges(self._read_range, self.url, names, self._read_ahead)

    def _read_range(self, name: str, part: slice) -> Any:
        return self._kvstore().read(name, byte_range=part)

    def _read_ahead(self, name: str, part: slice) -> Any:
        return self._kvstore("ahead").read(name, byte_range=part)

    def _request(self, name: str) -> Request:
        kvstore = self._kvstore()
        return Request(lambda: kvstore.read(name), f"{self.url}/{name}")

    def scan(self, name: str, size: int | None = None) -> Iterator[bytes]:
        return scan_object(partial(self._read_range, name), f"{self.url}/{name}", size)

    def write(self, name: str, data: bytes) -> None:
        self._put(name, data)

    def _put(self, name: str, data: bytes | None) -> None:
        """Write an object, or delete it; behind a fence only as it was when that let it pass."""
        kvstore = self._kvstore("writing")
        if self._fence is None:
            self._done(kvstore.write(name, data), name)
            return
        written = False
        while not written:
            seen = kvstore.read(name, byte_range=slice(0, 0)).result().stamp.generation
            self._fence()
            asked = kvstore.write(name, data, if_equal=seen)
            written = bool(self._done(asked, name).generation)

    def _done(self, asked: Any, name: str) -> Any:
        """The answer to a write."""
        while True:
            try:
                return asked.result(timeout=_TICK)
            except TimeoutError:
                check_stop()
            except (ValueError, RuntimeError) as error:
                raise Unwritten(f"{self.url}/{name}", reason(error)) from None

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            if not upload(f"{self.url}/{name}", path, self._fence):
                self.write(name, path.read_bytes())

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        kvstore = self._kvstore("writing")
        while True:
            result = kvstore.read(name).result()
            if self._fence:
                self._fence()
            data = change(None if result.state == "missing" else result.value)
            # Compare and swap: the answer has no generation if another writer was faster.
            expected = result.stamp.generation
            asked = kvstore.write(name, data, if_equal=expected)
            if self._done(asked, name).generation:
                return

    def list(self, prefix: str = "") -> list[str]:
        kvstore = self._kvstore("writing")
        below = kvstore.KeyRange(prefix, _after(prefix))
        return sorted(key.decode() for key in kvstore.list(below).result())

    def delete(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            self._put(prefix, None)
            return
        kvstore, names = self._kvstore("writing"), self.list(prefix)
        for start in range(0, len(names), _TOGETHER):
            if self._fence:
                self._fence()
            some = names[start : start + _TOGETHER]
            deleted = [kvstore.write(name, None) for name in some]
            for one, name in zip(deleted, some, strict=True):
                self._done(one, name)

    def sweep(self, *, below: bool = True) -> None:
        """Nothing to do: objects appear whole or not at all."""

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        zarr.make_room(self, name, array)
        return zarr.write(kvstore_spec(f"{self.url}/{name}"), array, context=context_for("writing"))

    def read_array(
        self,
        name: str,
        dtype: type[np.generic] | None = None,
        size: int | None = None,
        sha256: str | None = None,
    ) -> NDArray[Any]:
        stored = zarr.describe(self, name, dtype, size)
        if sha256 and stored.size * stored.dtype.itemsize > _MOST_COPIED:
            far: Any = self._far(name, stored, sha256)
            return far  # type: ignore[no-any-return]
        return self._whole(name, stored, sha256)

    def _far(self, name: str, stored: zarr.StoredArray, sha256: str) -> FarColumn:
        """A long array: of most of it a host needs little."""
        ranges = self.ranges(stored.chunks)

        def read(start: Ints, stop: Ints) -> list[memoryview]:
            chunk = start // stored.chunk_bytes
            first = start - chunk * stored.chunk_bytes
            return ranges.read(chunk, first, first + stop - start)

        whole = partial(self._whole, name, stored, sha256)
        return FarColumn(stored.size, stored.dtype, read, whole)

    def _whole(self, name: str, stored: zarr.StoredArray, sha256: str | None) -> NDArray[Any]:
        if sha256 and (mapped := self._cached(name, stored, sha256)) is not None:
            return np.frombuffer(mapped, stored.dtype)
        asked = [self._request(each) for each in stored.chunks]  # all run concurrently
        chunks = [_value(request) for request in asked]
        return zarr.joined(self, stored, chunks)

    def _cached(self, name: str, stored: zarr.StoredArray, sha256: str) -> memoryview | None:
        """The values of an array from this host's cache; None if that has no room for them."""
        total = stored.size * stored.dtype.itemsize
        if not total:
            return memoryview(b"")
        ranges = self.ranges(stored.chunks)

        def send(start: int, stop: int) -> Request:
            chunk, begin = divmod(start, stored.chunk_bytes)
            return ranges.send(chunk, begin, begin + stop - start)

        edges = [*range(0, total, stored.chunk_bytes), total]
        label = f"{self.url}\n{name}"
        return cached_column(f"{self.url}/{name}", sha256, edges, send, label)


def _value(request: Request) -> bytes:
    result = request.result()
    if result.state == "missing":
        raise missing(request.url)
    value: bytes = result.value
    return value


def _after(prefix: str) -> str:
    """The first name behind all that begin with a prefix; "" for no end."""
    return prefix and prefix[:-1] + chr(ord(prefix[-1]) + 1)
