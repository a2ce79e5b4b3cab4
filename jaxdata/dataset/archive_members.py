"""The files in archives that documents came from.

An origin counts the records of an archive across all of its files. A table of the first record of
each file, the member, tells which file a record is in and which line of that it is.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COLUMNS: dict[str, type[np.generic]] = {
    "member": np.uint8,
    "member_end": np.uint64,
    "member_file": np.uint32,
    "member_row": np.uint64,
}
"""The columns of a table, with their types."""


class Member(NamedTuple):
    """A record of a file in an archive."""

    name: str
    """of the file"""
    counted: str
    """"line" or "piece" (from 1), or "row" (from 0)"""
    number: int

    def after(self, records: int) -> Member:
        """The record that follows after `records` more."""
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
        """Append a record, unless it is where the last member continues."""
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
        """Copy the rows of another table; this one is empty."""
        self._lines.write(columns["member"].tobytes())
        for name, mine in self._numbers().items():
            mine.frombytes(np.asarray(columns[name], COLUMNS[name]).tobytes())

    def columns(self) -> dict[str, NDArray[Any]]:
        """The table by `COLUMNS`: uint8 lines of JSON, and (rows,) their ends and numbers."""
        self._lines.seek(0)
        lines = np.frombuffer(self._lines.read(), np.uint8)
        numbers = self._numbers().items()
        return {"member": lines} | {name: np.array(mine, COLUMNS[name]) for name, mine in numbers}

    def _numbers(self) -> dict[str, array[int]]:
        return {"member_end": self._ends, "member_file": self._files, "member_row": self._rows}


def find_member(columns: Mapping[str, NDArray[Any]], file: int, row: int) -> Member | None:
    """The member that holds a row of a file, and the row's number there; None outside archives."""
    files, rows = columns["member_file"], columns["member_row"]
    first, stop = (int(np.searchsorted(files, file, side)) for side in ("left", "right"))
    at = first + int(np.searchsorted(rows[first:stop], row, "right")) - 1
    if at < first:
        return None
    (line,) = lines_of_json(columns["member"], columns["member_end"], at, at + 1)
    (_, name), (counted, number) = line.items()
    return Member(str(name), counted, int(number)).after(row - int(rows[at]))


def lines_of_json(
    lines: NDArray[np.uint8], ends: NDArray[np.uint64], first: int, stop: int
) -> list[dict[str, Any]]:
    """Objects `[first, stop)` of a column of JSON, one a line; raises ValueError if it is none."""
    a, b = int(ends[first - 1]) if first else 0, int(ends[stop - 1]) if stop > first else 0
    found = lines[a:b].tobytes().split(b"\n")[: stop - first]
    try:
        objects = [json.loads(line) for line in found]
    except RecursionError:
        raise ValueError("a line that is nested too deep") from None
    if len(objects) != stop - first or not all(isinstance(each, dict) for each in objects):
        raise ValueError(f"{len(objects)} lines, for {stop - first} documents, or no objects")
    return objects
