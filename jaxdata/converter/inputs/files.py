"""The files of a corpus, here or in a bucket, and the units of work they are cut into.

A file is told from another without reading it: by its size, head and tail.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from jaxdata.converter.inputs.parsing import Raw, reading
from jaxdata.converter.inputs.streams import Compression
from jaxdata.dataset.index import Member
from jaxdata.storage.client import Facts
from jaxdata.storage.ranges import Part, open_object

_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


@dataclass(frozen=True)
class FileType:
    """How to read a file; see `reading.Format`."""

    format: str  # meaningless ("jsonl") for an archive
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
    def is_object(self) -> bool:
        """Whether it is not on this machine."""
        return self.version is not None

    @property
    def text_bytes(self) -> int:
        """Bytes of its text, about."""
        return self.size * (_EXPANSION if self.kind.compression else 1)

    def open(self, ahead_to: int | None = None) -> BufferedReader:
        """Open it to read; of an object nothing behind `ahead_to` is read ahead."""
        if self.version is None:
            return self.path.open("rb")
        return open_object(self.signed or self.where, self.size, self.version, ahead_to)


HEAD = 2**16
"""Bytes of the head, and of the tail."""


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
    size, tags = facts.size, {url: facts.tag}
    head = Part(url, 0, min(HEAD, size), tags).data
    tail = Part(url, size - HEAD, size, tags).data if size > HEAD else head
    return Look(size, head, tail, _number(f"{size} {facts.tag}"))


def changed_since(files: Iterable[InputFile]) -> list[InputFile]:
    """Those of some files whose stamps have changed, as they are now but for their size.

    A file that is gone is not needed any more, and what was added to one was read by nobody.
    """
    found = []
    for file in files:
        if file.is_object:  # nobody can have read another version
            continue
        with suppress(FileNotFoundError):
            if _stamp(file.path.stat()) != file.stamp:
                look = look_at(str(file.path), file.size)
                found.append(file._replace(digest=look.digest, stamp=look.stamp))
    return found


def stamp_of(files: Iterable[InputFile]) -> str:
    """16 hex digits over the stamps of files."""
    return f"{_number(','.join(str(file.stamp) for file in files)):016x}"


def _stamp(facts: os.stat_result) -> int:
    """64 bits that differ when a file may have changed.

    The time of the inode's change counts too: a program that edits a file can set the other back.
    """
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    return _number(repr(seen))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


UNIT_BYTES = 64 * 2**20
"""Text in a unit of a large corpus, about."""
_SMALLEST = 4 * 2**20
_UNITS = 256  # enough for every worker to have several: the last ones end at about the same time
RECORD_BYTES = 2**28
"""Bytes of the longest record that is read."""
PIECE_BYTES = 2**22
"""Bytes of a piece of a huge text, about."""

Data = bytes | tuple[Raw, ...]
"""Records one by one, or as bytes that their format reads (see `Format.records`)."""


@dataclass(frozen=True)
class ReadSettings:
    """What is read from files, and the limits on sizes.

    Attributes:
        columns: the columns of tables, None for all.
        record_bytes: the longest record.
        piece_bytes: a piece of a huge text, about.
        arrays: columns whose lists of numbers are read as arrays.
    """

    columns: tuple[str, ...] | None
    record_bytes: int = RECORD_BYTES
    piece_bytes: int = PIECE_BYTES
    arrays: tuple[str, ...] = ()


class FilePart(NamedTuple):
    """A run of records of one file; a corpus of small files has one for each.

    Attributes:
        file: number of the file among the inputs.
        start: first byte of the run, or first group of a table.
        stop: the byte or group after it; None for the end of the file.
        data: the records themselves, where only the parent can read them.
        member: the archive's file in which the part begins, if it is in an archive.
    """

    file: int
    start: int = 0
    stop: int | None = None
    data: Data | None = None
    member: Member | None = None


Blocks = Iterable[tuple[tuple[FilePart, ...], int, int]]
"""Of each the parts of a unit, their bytes on disk, their bytes of records."""


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time; becomes at most one shard a source, called by its name.

    Attributes:
        name: "<file>-<block>", the number of its first file and of its block in that file.
        size: the bytes of input it covers as they lie on disk; for the progress bar.
        text_bytes: the bytes of its records, about; for the progress bar.
        files: the file of each part; a worker knows of no others.
    """

    name: str
    parts: tuple[FilePart, ...]
    size: int
    text_bytes: int
    files: tuple[InputFile, ...] = ()

    @property
    def place(self) -> tuple[int, ...]:
        """(file, block): units are in the order of their places."""
        return tuple(map(int, self.name.split("-")))

    @property
    def where(self) -> str:
        """The first of its files."""
        return self.files[0].where

    @property
    def reads(self) -> list[tuple[InputFile, FilePart]]:
        """The parts, each with its file."""
        return list(zip(self.files, self.parts, strict=True))

    def without_data(self) -> "Unit":
        """Return what is worth keeping when a worker has the unit."""
        return replace(self, parts=tuple(part._replace(data=None) for part in self.parts))


def unit_bytes_for(text_bytes: int) -> int:
    """Default size of a unit's text, about; it follows from the text of the corpus alone.

    >>> [unit_bytes_for(gigabytes * 2**30) // 2**20 for gigabytes in (0, 1, 10, 1_000)]
    [4, 4, 32, 64]
    """
    share = text_bytes // _UNITS
    return min(max(_SMALLEST, 1 << share.bit_length() >> 1), UNIT_BYTES)
