"""One file of a corpus, here or in a bucket, and what tells it from another without reading it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from jaxdata.converter.inputs.parsing import reading
from jaxdata.converter.inputs.streams import Compression
from jaxdata.storage import client
from jaxdata.storage.client import Facts
from jaxdata.storage.objects import Part, open_object

_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


@dataclass(frozen=True)
class FileType:
    """How to read a file; see `formats.base`."""

    format: str  # meaningless ("txt") for an archive
    compression: Compression = ""  # of the whole file
    archive: bool = False


class InputFile(NamedTuple):
    """One file of the corpus; there may be millions, so each is small.

    Attributes:
        root: the folder that holds all inputs, or the URL of it.
        name: its path below that, with "/".
        size: bytes.
        kind: how it is read.
        digest: 16 hex digits over size, head and tail; not over path and time.
        stamp: differs when the file may have changed.
        signed: its URL, if there are secrets in it; they are neither in root nor name.
        version: of an object, what was looked at and alone is read; None for a file of this
            machine.
    """

    root: str
    name: str
    size: int
    kind: FileType
    digest: str
    stamp: int
    version: str | None = None
    signed: str = ""

    @property
    def path(self) -> Path:
        """Where it is, on this machine."""
        return Path(self.root, self.name)

    @property
    def where(self) -> str:
        """Its path, or its URL."""
        return f"{self.root}/{self.name}" if self.is_object else str(self.path)

    @property
    def url(self) -> str:
        """The URL of an object, to open it; not to be shown."""
        return self.signed or self.where

    @property
    def is_object(self) -> bool:
        """Whether it is not on this machine."""
        return self.version is not None

    @property
    def text_bytes(self) -> int:
        """Bytes of its text, about."""
        return self.size * (_EXPANSION if self.kind.compression else 1)

    def open(self, ahead_to: int | None = None) -> IO[bytes]:
        """Open it to read; of an object nothing behind `ahead_to` is read ahead."""
        if self.version is None:
            return self.path.open("rb")
        return open_object(self.url, self.size, self.version, ahead_to)


HEAD = 2**16
"""Bytes of the head, and of the tail."""
_CLOCKS = 60 * 10**9
"""ns that the clock of a bucket may be behind ours."""


class Look(NamedTuple):
    """A look at a file."""

    size: int
    head: bytes
    tail: bytes
    stamp: int

    @property
    def digest(self) -> str:
        """16 hex digits over size, head and tail; not over path and time."""
        known = str(self.size).encode() + self.head + self.tail
        return hashlib.sha256(known).hexdigest()[:16]


def look_at(path: str, known_size: int | None = None) -> Look:
    """Look at a file; what was added to it after its known size is no part of it."""
    with reading(path), open(path, "rb") as file:  # noqa: PTH123 (a Path costs more than this)
        facts = os.fstat(file.fileno())
        size = facts.st_size if known_size is None else known_size
        head = file.read(HEAD)[:size]
        file.seek(max(0, size - HEAD))
        tail = file.read(HEAD) if size > len(head) else head
    return Look(size, head, tail[:size], _stamp(facts))


def look_at_object(url: str, facts: Facts) -> Look:
    """Look at the version of an object that has these facts."""
    size = facts.size
    head = Part(url, 0, min(HEAD, size), facts.tag).result()
    tail = Part(url, size - HEAD, size, facts.tag).result() if size > HEAD else head
    return Look(size, head, tail, _number(f"{size} {facts.tag}"))


def written_at(file: InputFile) -> int:
    """When a file was last written, in ns since 1970; of an object, at the latest."""
    if not file.is_object:
        facts = file.path.stat()
        return max(facts.st_mtime_ns, facts.st_ctime_ns)
    found = client.look(file.url)
    return found.modified + _CLOCKS if found else 0


def changed_since(files: Iterable[InputFile]) -> list[InputFile]:
    """Those of some files whose stamps have changed, as they are now but for their size.

    A file that is gone is not needed any more, and what was added to one was read by nobody.
    """
    return [new for file in files if (new := _now(file)) != file]


def _now(file: InputFile) -> InputFile:
    if file.is_object:  # nobody can have read another version
        return file
    path = file.path
    try:
        if _stamp(path.stat()) == file.stamp:
            return file
    except FileNotFoundError:
        return file
    look = look_at(str(path), file.size)
    return file._replace(digest=look.digest, stamp=look.stamp)


def stamp_of(files: Iterable[InputFile]) -> str:
    """16 hex digits over the stamps of files."""
    return _hashed(",".join(str(file.stamp) for file in files)).hex()


def _stamp(facts: os.stat_result) -> int:
    """64 bits that differ when a file may have changed.

    The time of the inode's change counts too: a program that edits a file can set the other back.
    """
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    return _number(repr(seen))


def _number(text: str) -> int:
    return int.from_bytes(_hashed(text), "big")


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
