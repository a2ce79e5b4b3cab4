"""A dataset in a bucket: the objects below a URL, as files and arrays."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.ragged import AnyArray, ByteRanges, Ints
from jaxdata.storage import client, zarr
from jaxdata.storage.client import Found
from jaxdata.storage.contract import ANY, BUCKETS, MOST_READ, Fence, Kind, missing, too_large
from jaxdata.storage.local import map_file
from jaxdata.storage.pages.paged_files import FarColumn, cached_column
from jaxdata.storage.ranges import ExactRanges, Part, in_turn

_MOST_COPIED = 2**26
"""bytes of an array that is copied whole; of a longer one spans are fetched"""
_TOGETHER = 1000  # objects that are deleted at a time
_PIECE = 2**24
_SCANNED_AT_ONCE, _COPIED_AT_ONCE = 3, 16
"""pieces that are under way; so many are in memory"""


class RemoteStore:
    """The objects below a URL (see `Store`)."""

    local = False

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        self.url = url.rstrip("/")
        self._fence = fence

    def __reduce__(self) -> "tuple[type[RemoteStore], tuple[str]]":
        return RemoteStore, (self.url,)

    def fenced(self, fence: Fence) -> "RemoteStore":
        return RemoteStore(self.url, fence)

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _check(self) -> None:
        if self._fence:
            self._fence()

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

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        return ByteRanges.of(ExactRanges(self.url, names).read(file, start, stop))

    def scan(self, name: str) -> Iterator[bytes]:
        url = self._url(name)
        facts = client.look(url)
        if facts is None:
            raise missing(url)
        size, tags = facts.size, {url: facts.tag}
        starts = range(0, size, _PIECE)
        parts = (Part(url, start, min(start + _PIECE, size), tags) for start in starts)
        yield from in_turn(parts, _SCANNED_AT_ONCE)

    def write(self, name: str, data: bytes | memoryview) -> None:
        url, written = self._url(name), False
        if len(data) > client.MOST_WHOLE:

            def parts(size: int) -> Iterator[bytes]:
                for start in range(0, len(data), size):
                    yield bytes(data[start : start + size])
                self._check()  # when only the end is missing

            client.put_parts(url, len(data), parts)
        elif self._fence is None:
            client.put(url, bytes(data))  # a view would live as long as memory://
        else:
            while not written:  # only as it was when the fence let it pass
                found = client.look(url)
                self._fence()
                written = client.put(url, bytes(data), found or "create")

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            self.write(name, map_file(path))

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        url, written = self._url(name), False
        while not written:
            found: Found | None = client.get(url).result()
            self._check()
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
        url = self._url(prefix)
        if prefix.endswith("/"):
            urls = [each for each, _ in client.listed(url)]
            for start in range(0, len(urls), _TOGETHER):
                self._check()
                client.delete(urls[start : start + _TOGETHER])
            return
        while self._fence:  # no bucket compares before it deletes
            found = client.look(url)
            self._fence()
            if client.look(url) == found:
                break
        client.delete([url])

    def sweep(self, *, below: bool = True) -> None:
        """Nothing to do: objects appear whole or not at all."""

    def read_array(self, name: str, kind: Kind = ANY, sha256: str | None = None) -> AnyArray:
        stored = zarr.describe(self, name, kind)
        total, chunk_bytes = stored.size * stored.dtype.itemsize, stored.chunk_bytes
        ranges = ExactRanges(self.url, stored.chunks)

        def parts() -> Iterator[bytes]:
            """All bytes, of which some parts are under way; none lies in two objects."""
            asked = (
                ranges.part(chunk, start, min(start + _PIECE, end))
                for chunk in range(len(stored.chunks))
                for end in [min(chunk_bytes, total - chunk * chunk_bytes)]
                for start in range(0, end, _PIECE)
            )
            return in_turn(asked, _COPIED_AT_ONCE)

        def whole() -> AnyArray:
            data: Any = None
            if sha256 and total:
                label = f"{self.url}\n{name}"
                data = cached_column(self._url(name), sha256, total, parts, label)
            return np.frombuffer(b"".join(parts()) if data is None else data, stored.dtype)

        def read(start: Ints, stop: Ints) -> list[memoryview]:
            chunk, begin = np.divmod(start, chunk_bytes)
            return ranges.read(chunk, begin, begin + stop - start)

        if sha256 and total > _MOST_COPIED:  # of most of it a host needs little
            column: Any = FarColumn(stored.size, stored.dtype, read, whole)
            return column  # type: ignore[no-any-return]
        return whole()
