"""Units of work, and the runs of records they are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxdata.convert.splitting import Unreadable
from jaxdata.convert.streams import EXPANSION
from jaxdata.format.members import Member

__all__ = [
    "PIECE_BYTES",
    "RECORD_BYTES",
    "UNIT_BYTES",
    "Batches",
    "Data",
    "Part",
    "ReadSettings",
    "Unit",
    "unit_bytes_for",
]

UNIT_BYTES = 64 * 2**20
"""Text that a unit holds, about, of a corpus that is large."""
_SMALLEST = 4 * 2**20
_UNITS = 256  # enough for every worker to have several: the last ones end at about the same time

RECORD_BYTES = 2**28
"""Bytes of the longest record that is taken in."""

PIECE_BYTES = 2**22
"""Bytes of a piece of a huge text, about."""


class Batches(bytes):
    """Rows of a table, packed."""


Data = bytes | tuple[bytes | Unreadable, ...]
"""Lines, or :class:`Batches`, or records one by one."""


@dataclass(frozen=True)
class ReadSettings:
    """What is read of files, and how much is too much.

    Attributes:
        columns: the columns of tables, None for all.
        record_bytes: the longest record.
        expansion: times its size that a compressed file may grow to.
        piece_bytes: a piece of a huge text, about.
        joined: whether the pieces of a text are one document, cut where that changes no token of
            most tokenizers (between words); else each is one, cut at a line end.
    """

    columns: tuple[str, ...] | None
    record_bytes: int = RECORD_BYTES
    expansion: int = EXPANSION
    piece_bytes: int = PIECE_BYTES
    joined: bool = False


@dataclass(frozen=True)
class Part:
    """A run of records of one file.

    Attributes:
        file: number of the file among the inputs.
        start: first byte of the run, or first group of a table.
        stop: the byte or group after it; None for the end of the file.
        data: the records themselves, where only the parent can read them.
        member: the first of these, where they lie in an archive.
    """

    file: int
    start: int = 0
    stop: int | None = None
    data: Data | None = None
    member: Member | None = None


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time; becomes at most one shard a source, called by its name.

    Attributes:
        name: "<file>-<block>", the number of its first file and of its block in that file.
        parts: what it covers, in order.
        size: the bytes of input it covers as they lie on disk; for the progress bar.
        text_bytes: the bytes of its records, about; likewise.
        deal: where splits are contiguous: for each, the number of the unit's documents that
            belong to it or to one before it. None for all of them where they say.
    """

    name: str
    parts: tuple[Part, ...]
    size: int
    text_bytes: int
    deal: tuple[int, ...] | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """(file, block): units are in the order of their places."""
        return tuple(map(int, self.name.split("-")))

    def without_data(self) -> Unit:
        """Return what is worth keeping when a worker has the unit."""
        return replace(self, parts=tuple(replace(part, data=None) for part in self.parts))


def unit_bytes_for(text_bytes: int) -> int:
    """Text that a unit holds, about, where nobody says; it follows from the corpus alone.

    Args:
        text_bytes: text of the corpus, about.

    >>> [unit_bytes_for(gigabytes * 2**30) // 2**20 for gigabytes in (0, 1, 10, 1_000)]
    [4, 4, 32, 64]
    """
    share = text_bytes // _UNITS
    return min(max(_SMALLEST, 1 << share.bit_length() >> 1), UNIT_BYTES)
