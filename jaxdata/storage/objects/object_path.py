"""A file of a dataset that other tools wrote: a path of this machine, or one in a bucket."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

from jaxdata.base.errors import DatasetError
from jaxdata.storage.objects.contract import Facts
from jaxdata.storage.objects.ranged_file import RangedFile
from jaxdata.storage.objects.schemes import is_url, place_of, plain_path

_COPIED = 2**22


class Stat(NamedTuple):
    """As of `os.stat`."""

    st_size: int
    st_mtime_ns: int


class ObjectPath:
    """What a `Path` is for a file, for an object of a bucket or web server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self._url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> ObjectPath:
        return ObjectPath(f"{self.parent}/{Path(self.name).with_suffix(suffix)}")

    @cached_property
    def _found(self) -> Facts | None:
        return place_of(self._url).look(self._url)

    @property
    def _facts(self) -> Facts:
        if self._found is None:
            raise DatasetError(f"{self._url} is missing")
        return self._found

    @property
    def version(self) -> str:
        """64 hex digits that differ for other URLs, sizes and versions."""
        facts = self._facts
        return hashlib.sha256(f"{self._url} {facts.size} {facts.tag}".encode()).hexdigest()

    def is_file(self) -> bool:
        return self._found is not None

    def is_dir(self) -> bool:
        return not self._url.startswith("http") and any(True for _ in self.iterdir())

    def iterdir(self) -> Iterator[ObjectPath]:
        """The objects directly below."""
        for url, _ in place_of(self._url).listed(f"{self._url}/"):
            if url.rpartition("/")[0] == self._url:
                yield ObjectPath(url)

    def stat(self) -> Stat:
        return Stat(self._facts.size, self._facts.modified)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The version that was looked at first, to read."""
        assert mode == "rb", "objects are only read"
        facts = self._facts

        def read(start: int, stop: int) -> bytes:
            return place_of(self._url).read(self._url, start, stop, facts.tag)

        return RangedFile(read, facts.size).buffered()

    def copy_to(self, path: Path) -> None:
        """Write a copy."""
        with self.open() as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, _COPIED)


AnyPath = Path | ObjectPath


def any_path(given: str) -> AnyPath:
    """The path of a file, or of an object.

    >>> any_path("gs://bucket/pile.bin").with_suffix("").name, any_path("a/b").name
    ('pile', 'b')
    """
    path = plain_path(given)
    return ObjectPath(path) if is_url(path) else Path(path).expanduser()
