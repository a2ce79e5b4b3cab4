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

from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.storage import zarr
from jaxdata.storage.contract import MOST_READ, Fence, missing, too_large
from jaxdata.storage.credentials import GOOGLE, bucket_of, endpoint_of
from jaxdata.storage.kvstores import (
    Purpose,
    answer_to_anybody,
    context_for,
    kvstore_spec,
    open_kvstore,
    process_context,
)
from jaxdata.storage.objects.uploads import upload
from jaxdata.storage.pages.far_column import FarColumn
from jaxdata.storage.pages.index_columns import cached_column
from jaxdata.storage.patience import Request
from jaxdata.storage.ranges import ExactRanges
from jaxdata.storage.refusals import no_such_bucket
from jaxdata.storage.streamed import scan_object

_MOST_COPIED = 2**26
"""bytes of an array that is copied whole; of a longer one spans are fetched"""
_TOGETHER = 64  # objects that are deleted at a time
_NO_NAME = "\x01"


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

    def check_bucket(self) -> None:
        """Raise DatasetError if there is no such bucket: to reads, an object is missing."""
        if self.url.startswith("gs://"):  # of which a list is as empty
            address = endpoint_of(self.url)[1] or GOOGLE
            status, _ = answer_to_anybody(f"{address}/{bucket_of(self.url).removeprefix('gs://')}")
            if status == 404:
                raise no_such_bucket(self.url)
        elif self.url.startswith("s3://"):
            self.list(_NO_NAME)  # raises where there is none

    def exists(self, name: str) -> bool:
        return bool(self._stat(name).state != "missing")

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

    def _stat(self, name: str) -> Any:
        """What is known of an object without its content."""
        kvstore, nothing = self._kvstore(), slice(0, 0)
        asked = Request(lambda: kvstore.read(name, byte_range=nothing), f"{self.url}/{name}")
        return asked.result()

    def scan(self, name: str, size: int | None = None) -> Iterator[bytes]:
        return scan_object(partial(self._read_range, name), f"{self.url}/{name}", size)

    def write(self, name: str, data: bytes) -> None:
        self._put(name, data)

    def _put(self, name: str, data: bytes | None) -> None:
        """Write an object, or delete it; behind a fence only as it was when that let it pass."""
        if self._fence is None:
            self._write(name, data).result()
            return
        written = False
        while not written:
            found = self._stat(name)
            self._fence()
            written = self._swapped(name, data, found)

    def _swapped(self, name: str, data: bytes | None, found: Any) -> bool:
        """Write an object if it is as it was found; False if another writer was faster."""
        # The answer has a generation if it was written.
        if self._write(name, data, if_equal=found.stamp.generation).result().generation:
            return True
        if found.state == "missing":
            self.check_bucket()  # of one that is not there, S3 says the same
        return False

    def _write(self, name: str, data: bytes | None, **condition: Any) -> Request:
        kvstore = self._kvstore("writing")
        return Request(
            lambda: kvstore.write(name, data, **condition), f"{self.url}/{name}", done="written"
        )

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            if not upload(f"{self.url}/{name}", path, self._fence):
                self.write(name, path.read_bytes())

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        while True:
            result = self._request(name).result()
            if self._fence:
                self._fence()
            data = change(None if result.state == "missing" else result.value)
            if self._swapped(name, data, result):
                return

    def list(self, prefix: str = "") -> list[str]:
        kvstore = self._kvstore()
        below = kvstore.KeyRange(prefix, _after(prefix))
        asked = Request(lambda: kvstore.list(below), f"{self.url}/", done="listed")
        names = sorted(key.decode() for key in asked.result())
        if not (prefix or names):
            self.check_bucket()
        return names

    def delete(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            self._put(prefix, None)
            return
        names = self.list(prefix)
        for start in range(0, len(names), _TOGETHER):
            if self._fence:
                self._fence()
            some = names[start : start + _TOGETHER]
            for one in [self._write(name, None) for name in some]:
                one.result()

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
