"""Units of work, and the runs of records they are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxdata.converter.inputs.files import InputFile
from jaxdata.converter.inputs.parsing import Raw
from jaxdata.converter.inputs.streams import EXPANSION
from jaxdata.dataset.archive_members import Member

UNIT_BYTES = 64 * 2**20
"""Text in a unit of a large corpus, about."""
_SMALLEST = 4 * 2**20
_UNITS = 256  # enough for every worker to have several: the last ones end at about the same time
RECORD_BYTES = 2**28
"""Bytes of the longest record that is read."""
PIECE_BYTES = 2**22
"""Bytes of a piece of a huge text, about."""

Data = bytes | tuple[Raw, ...]
"""Records one by one, or as bytes that their format reads (see `Format.read_data`)."""


@dataclass(frozen=True)
class ReadSettings:
    """What is read from files, and the limits on sizes.

    Attributes:
        columns: the columns of tables, None for all.
        record_bytes: the longest record.
        expansion: expansion limit of compressed files, as a multiple of their size.
        piece_bytes: a piece of a huge text, about.
        joined: whether the pieces of a text are one document, cut where that changes no token of
            most tokenizers (between words); else each is one, cut at a line end.
        arrays: columns whose lists of numbers are read as arrays.
    """

    columns: tuple[str, ...] | None
    record_bytes: int = RECORD_BYTES
    expansion: int = EXPANSION
    piece_bytes: int = PIECE_BYTES
    joined: bool = False
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


Block = tuple[tuple[FilePart, ...], int, int]
"""The parts of a unit, their bytes on disk, their bytes of records."""


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time; becomes at most one shard a source, called by its name.

    Attributes:
        name: "<file>-<block>", the number of its first file and of its block in that file.
        size: the bytes of input it covers as they lie on disk; for the progress bar.
        text_bytes: the bytes of its records, about; for the progress bar.
        files: the file of each part; a worker knows of no others.
        split_ends: where splits are contiguous, see `splits.SplitEnds`.
        recheck: it has a receipt, which holds if what it would read is still what it read.
    """

    name: str
    parts: tuple[FilePart, ...]
    size: int
    text_bytes: int
    files: tuple[InputFile, ...] = ()
    split_ends: tuple[int, ...] | None = None
    recheck: bool = False

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

    def without_data(self) -> Unit:
        """Return what is worth keeping when a worker has the unit."""
        if all(part.data is None for part in self.parts):
            return self
        return replace(self, parts=tuple(part._replace(data=None) for part in self.parts))


def unit_bytes_for(text_bytes: int) -> int:
    """Default size of a unit's text, about; it follows from the text of the corpus alone.

    >>> [unit_bytes_for(gigabytes * 2**30) // 2**20 for gigabytes in (0, 1, 10, 1_000)]
    [4, 4, 32, 64]
    """
    share = text_bytes // _UNITS
    return min(max(_SMALLEST, 1 << share.bit_length() >> 1), UNIT_BYTES)


def next_multiple(start: int, unit_bytes: int) -> int:
    """The first multiple of `unit_bytes` after `start`."""
    return (start // unit_bytes + 1) * unit_bytes
