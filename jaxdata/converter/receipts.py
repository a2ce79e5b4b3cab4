"""Receipts: the commit of a unit, and all that index and manifest are made from."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, GetPydanticSchema, PlainSerializer, TypeAdapter

from jaxdata.converter.inputs.files import InputFile
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.dataset.index import Member
from jaxdata.dataset.manifest import Count, ShardEntry

Members = dict[int, list[tuple[int, Member]]]
"""For parts of archives: where files of the archive begin or continue, as the number of a record in
the part, and which record of which file it is."""

_CONFIG = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")
_Stored = Annotated[
    tuple[str, bytes],
    AfterValidator(lambda stored: np.frombuffer(stored[1], stored[0])),
    PlainSerializer(
        lambda array: (array.dtype.str, array.tobytes()), return_type=tuple[str, bytes]
    ),
]
Array = Annotated[NDArray[Any], GetPydanticSchema(lambda _, schema: schema(_Stored))]
"""An array, in JSON its type and bytes."""


@dataclass(frozen=True)
class Quarantined:
    """A record without a usable text."""

    __pydantic_config__ = _CONFIG
    part: Count  # its number in the unit
    record: Count  # its number in the part, from 0
    reason: str
    raw: bytes | None  # None for a null in a table
    keys: tuple[str, ...] = ()  # of an object that lacks the text key


@dataclass(frozen=True)
class OutputReceipt:
    """What a unit wrote to one output, that is a source of a split.

    Attributes:
        shards: the file of the documents under "", and those of their side arrays by name.
        pages: checksums of the pages of each, uint32 (pages,).
        columns: what is known of each document. `length`, its tokens with EOD, `part`, the part of
            the unit that it came from, and `record`, its record's number in that, from 0, are
            uint32 (documents,); `kept` is a line of JSON for each, uint8 (bytes,), if fields are
            kept; those of `HASH_COLUMNS` that are kept are uint64 (documents * n,).
        counts: statistics that add up over units.
    """

    __pydantic_config__ = _CONFIG
    shards: dict[str, ShardEntry]
    pages: dict[str, Array]
    columns: dict[str, Array]
    counts: Counter[str]


@dataclass
class Receipt:
    """The receipt of one unit, as far as it was read.

    Attributes:
        unit: its name.
        records: records of each part, blank lines included. With those of earlier units they turn
            numbers in a part into numbers in a file.
        stamp: of the unit's files before they were read, see `files.stamp_of`.
        outputs: what was written, by `"<split>/<source>"`; only outputs with documents.
        quarantined: the bad records, in order.
        dropped: records and documents left out on purpose, by reason.
        counts: statistics that add up over units: "blank" lines, "added" by records that became
            several documents, and so on. Over all outputs of one stream, documents + quarantined +
            dropped + blank = records + added.
        members: where files of archives begin.
        encoder: what encoded the texts, "fastokens 0.3.5"; "" for the tokenizer's own library.
        encoding: what the encoder counted.
    """

    __pydantic_config__ = _CONFIG
    unit: str
    records: list[Count]
    stamp: str = ""
    outputs: dict[str, OutputReceipt] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    members: Members = field(default_factory=dict)
    encoder: str = ""
    encoding: Counter[str] = field(default_factory=Counter)

    def encode(self) -> bytes:
        """Its bytes: JSON."""
        return _receipts().dump_json(self)

    @classmethod
    def decode(cls, unit: str, data: bytes) -> Receipt:
        """Read the receipt of a unit; raises ValueError if it is another's."""
        found = _receipts().validate_json(data)
        if found.unit != unit:
            raise ValueError(f"it is the receipt of another unit: {found.unit}")
        return found

    def member(self, part: int, record: int) -> Member | None:
        """Where a record of a part is in an archive."""
        starts = self.members.get(part, [])
        at = bisect_right(starts, record, key=lambda start: start[0]) - 1
        return starts[at][1].after(record - starts[at][0]) if at >= 0 else None


@cache
def _receipts() -> TypeAdapter[Receipt]:
    return TypeAdapter(Receipt)


@dataclass(frozen=True)
class RecordPlace:
    """Where a record is.

    Its number is that in the input file, all files of an archive counted through; `member` says
    where it is in an archive.
    """

    file: InputFile
    number: int
    member: Member | None = None

    def __str__(self) -> str:
        """`pages.jsonl:3`, or `pages.tar: a.jsonl:3`."""
        if self.member:
            return f"{self.file.where}: {self.member.name}:{self.member.number}"
        return f"{self.file.where}:{self.number}"

    def as_json(self) -> dict[str, Any]:
        """Its parts by name, as quarantine has them."""
        if self.member:
            name, unit, number = self.member
            return {"file": self.file.name, "member": name, unit: number}
        return {"file": self.file.name, reader_of(self.file.kind).counted: self.number}
