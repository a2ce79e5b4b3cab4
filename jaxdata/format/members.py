"""The files of archives that documents came from: where each begins, and what it is called.

An origin numbers the records of an archive through all of its files. A table of these, by the
number of their first records, says which of them a record is in, and which of its lines it is.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "Member", "MemberTable", "find_member"]

COLUMNS: dict[str, type[np.generic]] = {
    "member": np.uint8,
    "member_end": np.uint64,
    "member_file": np.uint32,
    "member_row": np.uint64,
}
"""Of a table, with their types."""


class Member(NamedTuple):
    """A record of a file of an archive.

    Attributes:
        name: the file's name in the archive.
        counted: what its records are: "line" or "piece" (from 1), or "row" (from 0).
        number: which of them.
    """

    name: str
    counted: str
    number: int

    def after(self, records: int) -> Member:
        """The record that comes so many later."""
        return self._replace(number=self.number + records)


class MemberTable:
    """The first records of members, in the order of files and of their rows."""

    def __init__(self) -> None:
        self._files, self._rows, self._ends = array("I"), array("Q"), array("Q")
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115 (goes with this object)
        self._last: tuple[int, int, Member] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, file: int, row: int, member: Member) -> None:
        """Append a record; one that is where the last member goes on says nothing new."""
        if self._last:
            last_file, last_row, last = self._last
            if file == last_file and last.after(row - last_row) == member:
                return
        self._last = file, row, member
        line = json.dumps({"name": member.name, member.counted: member.number}).encode() + b"\n"
        self._files.append(file)
        self._rows.append(row)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))
        self._lines.write(line)

    def begin_with(self, columns: dict[str, NDArray[Any]]) -> None:
        """Take the rows of another table; this one has none yet."""
        self._lines.write(columns["member"].tobytes())
        for name, mine in self._numbers().items():
            mine.frombytes(np.asarray(columns[name], COLUMNS[name]).tobytes())

    def columns(self) -> dict[str, NDArray[Any]]:
        """All of it, by `COLUMNS`: uint8 lines of JSON, and of (rows,) their ends and numbers."""
        self._lines.seek(0)
        lines = np.frombuffer(self._lines.read(), np.uint8)
        numbers = self._numbers().items()
        return {"member": lines} | {name: np.array(mine, COLUMNS[name]) for name, mine in numbers}

    def _numbers(self) -> dict[str, array[int]]:
        return {"member_end": self._ends, "member_file": self._files, "member_row": self._rows}


def find_member(columns: Mapping[str, NDArray[Any]], file: int, row: int) -> Member | None:
    """The member that a row of a file is in, and its number there; None in no archive.

    Args:
        columns: of a table.
        file: number of the file.
        row: number of the record in it.
    """
    files, rows = columns["member_file"], columns["member_row"]
    first, stop = (int(np.searchsorted(files, file, side)) for side in ("left", "right"))
    at = first + int(np.searchsorted(rows[first:stop], row, "right")) - 1
    if at < first:
        return None
    ends = columns["member_end"]
    line = columns["member"][int(ends[at - 1]) if at else 0 : int(ends[at])]
    (_, name), (counted, number) = json.loads(line.tobytes()).items()
    return Member(name, counted, number).after(row - int(rows[at]))
