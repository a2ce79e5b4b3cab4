"""A dataset in a bucket: the objects below a URL, as files and arrays."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.storage import client, zarr
from jaxdata.storage.client import Found
from jaxdata.storage.contract import MOST_READ, Fence, missing, too_large
from jaxdata.storage.credentials import BUCKETS
from jaxdata.storage.pages.index_columns import FarColumn, cached_column
from jaxdata.storage.patience import Request
from jaxdata.storage.ranges import ExactRanges

_MOST_COPIED = 2**26
"""bytes of an array that is copied whole; of a longer one spans are fetched"""
_TOGETHER = 1000  # objects that are deleted at a time
_PIECE = 2**24
_AT_ONCE = 3


class RemoteStore:
    """The objects below a URL (see `Store`)."""

    local = False

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        self.url = url.rstrip("/")
        self._fence = fence

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[str]]:
        return RemoteStore, (self.url,)

    def fenced(self, fence: Fence) -> RemoteStore:
        return RemoteStore(self.url, fence)

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str, most: int | None = MOST_READ) -> bytes | None:
        found: Found | None = client.get(self._url(name)).result()
        if found is None:
            return None
        if most is not None and len(found.value) > most:
            raise too_large(self._url(name), len(found.value), most)
        return found.value

    def check_bucket(self) -> None:
        """Raise DatasetError if there is no such bucket: to reads, an object is missing."""
        if self.url.startswith(BUCKETS):
            next(client.listed(self._url("-/")), None)

    def exists(self, name: str) -> bool:
        return client.look(self._url(name)) is not None

    def written_at(self, name: str) -> int | None:  # noqa: ARG002
        return None

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        return ByteRanges.of(self.ranges(names).read(file, start, stop))

    def ranges(self, names: Sequence[str]) -> ExactRanges:
        """Ranges of files of these names."""
        return ExactRanges(self.url, names)

    def scan(self, name: str) -> Iterator[bytes]:
        url = self._url(name)
        facts = client.look(url)
        if facts is None:
            raise missing(url)
        starts = range(0, facts.size, _PIECE)
        asked = (client.get(url, start, min(start + _PIECE, facts.size)) for start in starts)
        sent = deque(islice(asked, _AT_ONCE))
        while sent:
            found = sent.popleft().result()
            if found is None or found.facts.tag != facts.tag:
                raise DatasetError(f"{url} changed while it was read: run the same command again")
            yield found.value
            sent.extend(islice(asked, 1))

    def write(self, name: str, data: bytes | memoryview) -> None:
        if len(data) > client.MOST_WHOLE:
            self._put_parts(name, len(data), lambda part: _cut(data, part))
        elif self._fence is None:
            client.put(self._url(name), data)
        else:  # only as it was when the fence let it pass
            written = False
            while not written:
                found = client.look(self._url(name))
                self._fence()
                written = client.put(self._url(name), data, found or "create")

    def _put_parts(self, name: str, size: int, pieces: Callable[[int], Iterable[Any]]) -> None:
        """Write a large object; the fence is asked when only its end is missing."""

        def fenced(part: int) -> Iterator[Any]:
            yield from pieces(part)
            if self._fence:
                self._fence()

        if self.url.startswith(BUCKETS):
            client.put_parts(self._url(name), size, fenced)
        else:
            client.put(self._url(name), b"".join(fenced(size)))

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            if (size := path.stat().st_size) > client.MOST_WHOLE:
                self._put_parts(name, size, partial(_read_parts, path))
            else:
                self.write(name, path.read_bytes())

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        url, written = self._url(name), False
        while not written:
            found: Found | None = client.get(url).result()
            if self._fence:
                self._fence()
            data = change(None if found is None else found.value)
            if data is None and found is None:
                return
            # No bucket deletes an object only if it is still the same: it is empty for a moment.
            written = client.put(url, data or b"", "create" if found is None else found.facts)
            if written and data is None:
                client.delete([url])

    def list(self, prefix: str = "") -> list[str]:
        below = len(self._url(""))
        return sorted(url[below:] for url, _ in client.listed(self._url(prefix)))

    def delete(self, prefix: str) -> None:
        if prefix.endswith("/"):
            urls = [self._url(name) for name in self.list(prefix)]
            for start in range(0, len(urls), _TOGETHER):
                if self._fence:
                    self._fence()
                client.delete(urls[start : start + _TOGETHER])
            return
        url = self._url(prefix)
        while self._fence:  # no bucket compares before it deletes
            found = client.look(url)
            self._fence()
            if client.look(url) == found:
                break
        client.delete([url])

    def sweep(self, *, below: bool = True) -> None:
        """Nothing to do: objects appear whole or not at all."""

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        return zarr.write(self, name, array)

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
        asked = [client.get(self._url(each)) for each in stored.chunks]  # all run concurrently
        return zarr.joined(self, stored, [_value(request) for request in asked])

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
        return cached_column(self._url(name), sha256, edges, send, f"{self.url}\n{name}")


def _value(request: Request) -> bytes:
    found: Found | None = request.result()
    if found is None:
        raise missing(request.url)
    return found.value


def _cut(data: bytes | memoryview, size: int) -> Iterator[memoryview]:
    whole = memoryview(data)
    return (whole[start : start + size] for start in range(0, len(whole), size))


def _read_parts(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(size):
            yield part
