"""The objects of a bucket: bytes by name, each writing with a generation of its own.

A generation is a number that grows with every writing, so that a client can say "only if it is
still the one that I read". An ETag is the MD5 of the content, as of S3: the same content has the
same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """What is known of an object."""

    generation: int
    size: int
    modified: float
    """seconds since 1970"""


class Objects:
    """Objects in memory; their names begin with that of their bucket."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Entry, bytes]] = {}
        self._etags: dict[tuple[str, int], str] = {}
        self._last = 0

    def stat(self, name: str) -> Entry | None:
        """What is known of an object; None if there is none."""
        return self._held[name][0] if name in self._held else None

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Some of its bytes."""
        return memoryview(self._held[name][1])[start:stop]

    def write(self, name: str, data: bytes) -> Entry:
        """Write an object over whatever had its name."""
        entry = Entry(self._next(), len(data), time.time())
        self._held[name] = entry, data
        return entry

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        self._held.pop(name, None)

    def names(self, prefix: str = "") -> list[str]:
        """Names of all objects that begin with `prefix`, in order."""
        return sorted(name for name in self._held if name.startswith(prefix))

    def etag(self, name: str) -> str:
        """The ETag of an object, quotes included."""
        entry = self.stat(name)
        if entry is None:
            raise KeyError(name)
        key = name, entry.generation
        if key not in self._etags:
            content = self.read(name, 0, entry.size)
            self._etags[key] = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        return self._etags[key]

    def _next(self) -> int:
        """A generation larger than all before, also than those of a server that ended."""
        self._last = max(self._last + 1, time.time_ns())
        return self._last


class FolderObjects(Objects):
    """Objects that are files: `<folder>/<bucket>/<name>`; what others change there is seen.

    Args:
        folder: exists, or is made.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def stat(self, name: str) -> Entry | None:
        path = self._folder / name
        if not _is_path(name) or not path.is_file():
            return None
        found = path.stat()
        return Entry(found.st_mtime_ns, found.st_size, found.st_mtime)

    def read(self, name: str, start: int, stop: int) -> memoryview:
        with (self._folder / name).open("rb") as file:
            return memoryview(os.pread(file.fileno(), stop - start, start))

    def write(self, name: str, data: bytes) -> Entry:
        if not _is_path(name):
            raise ValueError(f"no file can be called {name!r}: keep such objects in memory")
        path, generation = self._folder / name, self._next()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(data)
        os.utime(file.name, ns=(generation, generation))
        Path(file.name).rename(path)
        return Entry(generation, len(data), generation / 1e9)

    def delete(self, name: str) -> None:
        if self.stat(name):
            (self._folder / name).unlink()

    def names(self, prefix: str = "") -> list[str]:
        files = (file for file in self._folder.glob("*/**/*") if file.is_file())
        named = (file.relative_to(self._folder).as_posix() for file in files)
        return sorted(name for name in named if name.startswith(prefix))


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return all(parts) and not {".", ".."} & {*parts} and "\0" not in name
