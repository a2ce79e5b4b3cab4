"""Where a record is, as people look for it: file, file in an archive, line."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.receipts import Receipt
from jaxdata.format.members import Member

__all__ = ["Place", "member_of", "place_of"]


@dataclass(frozen=True)
class Place:
    """Where a record is.

    Attributes:
        file: the input file.
        number: of the record in it, all files of an archive counted through.
        member: where it is in an archive; None in no archive.
    """

    file: InputFile
    number: int
    member: Member | None = None

    def __str__(self) -> str:
        """`pages.jsonl:3`, or `pages.tar: a.jsonl:3`."""
        if self.member:
            return f"{self.file.path}: {self.member.name}:{self.member.number}"
        return f"{self.file.path}:{self.number}"

    def as_json(self) -> dict[str, Any]:
        """Its parts by name, as quarantine has them."""
        if self.member:
            name, counted, number = self.member
            return {"file": self.file.name, "member": name, counted: number}
        return {"file": self.file.name, self.file.kind.counted: self.number}


def member_of(receipt: Receipt, part: int, record: int) -> Member | None:
    """Where a record of a part of a unit is in an archive."""
    starts = receipt.members.get(part, [])
    at = bisect_right(starts, record, key=lambda start: start[0]) - 1
    return starts[at][1].after(record - starts[at][0]) if at >= 0 else None


def place_of(file: InputFile, first: int, receipt: Receipt, part: int, record: int) -> Place:
    """Where a record of a part of a unit is; `first` is the number of the part's first one."""
    return Place(file, first + record, member_of(receipt, part, record))
