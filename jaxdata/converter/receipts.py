"""Receipts: the commit of a unit; and put together, all that index and manifest are made from."""

import base64
import json
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ConfigDict, GetPydanticSchema, PlainSerializer, TypeAdapter

from jaxdata.base.ragged import AnyArray, AnyInts
from jaxdata.converter.inputs.files import InputFile, Unit
from jaxdata.converter.inputs.reading import reader_of
from jaxdata.converter.statistics import COUNTED
from jaxdata.dataset.index import Member, SourceIndex
from jaxdata.dataset.manifest import Count, ShardEntry

Members = dict[int, list[tuple[int, Member]]]
"""For parts of archives: where files of the archive begin or continue, as the number of a record in
the part, and which record of which file it is."""

_CONFIG = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")
_Stored = Annotated[
    tuple[str, bytes],
    AfterValidator(lambda stored: np.frombuffer(stored[1], stored[0])),
    PlainSerializer(lambda one: (one.dtype.str, one.tobytes()), return_type=tuple[str, bytes]),
]
Array = Annotated[AnyArray, GetPydanticSchema(lambda _, schema: schema(_Stored))]
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
    def decode(cls, unit: str, data: bytes) -> "Receipt":
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


_DERIVED = ("anchor", "kept_end", "member_end")
"""Columns that `write_index` makes of others."""


class LongColumn:
    """A column in the making that may not fit in memory; on disk."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (goes with this object)
        self._dtype = dtype

    def add(self, values: bytes | AnyArray) -> None:
        self._file.write(values if isinstance(values, bytes) else np.ascontiguousarray(values).data)

    @property
    def mapped(self) -> AnyArray:
        """All values that were added."""
        self._file.flush()
        size = self._file.tell() // self._dtype.itemsize
        empty = np.empty(0, self._dtype)
        return np.memmap(self._file, self._dtype, "r", shape=(size,)) if size else empty


class MergedOutput:
    """What all units wrote to one source: its shards in order, statistics, index columns.

    It begins with an existing source, where documents are added to one.
    """

    def __init__(self, index: SourceIndex | None = None) -> None:
        self.shards: defaultdict[str, list[ShardEntry]] = defaultdict(list)
        """its own under "", those of side arrays by name"""
        self.counts: Counter[str] = Counter()
        self._columns: dict[str, LongColumn] = {}
        if index is None:
            return
        self.shards[""] += index.entry.shards
        for side, entry in index.entry.side.items():
            self.shards[side] += entry.shards
        for name in index.columns:
            if name.rpartition(".")[2] not in _DERIVED:
                self._add(name, index.column(name))
        known = index.entry.statistics
        self.counts.update({name: known[name] for name in COUNTED if name in known})

    def add(self, files: AnyInts, rows: AnyInts, wrote: OutputReceipt, members: Members) -> None:
        """Append what a unit wrote.

        `files`, uint32, and `rows`, uint64 (parts,), have the file of each part of the unit, and
        the number of the part's first record in it.
        """
        columns = dict(wrote.columns)
        part, record = columns.pop("part"), columns.pop("record")
        columns |= {"origin_file": files[part], "origin_row": rows[part] + record}
        columns |= {f"{side}.page" if side else "page": each for side, each in wrote.pages.items()}
        for name, column in columns.items():
            self._add(name, column)
        for side, shard in wrote.shards.items():
            self.shards[side].append(shard)
        self.counts += wrote.counts
        for number, starts in sorted(members.items()):
            own = record[slice(*np.searchsorted(part, [number, number + 1]))]
            places = np.array([start for start, _ in starts])
            # Only those that a document comes from.
            for at in np.unique(np.searchsorted(places, own, "right") - 1).tolist():
                start, member = starts[at]
                for name, column in member.columns(files[number], rows[number] + start).items():
                    self._add(name, column)

    def _add(self, name: str, column: AnyArray) -> None:
        if name not in self._columns:
            self._columns[name] = LongColumn(column.dtype)
        self._columns[name].add(column)

    def columns(self) -> dict[str, AnyArray]:
        """The columns of the index, but for those that follow from others; mapped.

        `length`, uint32 (documents,), are tokens with EOD; `origin_file`, uint32, is the number of
        the input file, and `origin_row`, uint64, the line (from 1) or row (from 0) in it; `page`,
        uint32, are checksums of the pages of all shards, `NAME.page` those of a side array.
        """
        return {name: column.mapped for name, column in self._columns.items()}


class MergedReceipts:
    """The receipts of a whole conversion, their records numbered within the files.

    Args:
        files: the inputs.
        first_file: the number of the first input, where documents are added to sources.
        base: these sources, by name.

    Attributes:
        outputs: the sources that got a document, by `"<split>/<source>"`.
        bad_lines: what goes to quarantine: lines of JSON, uint8.
        dropped: records and documents that were left out, by reason.
        reasons: quarantined records by reason.
        last: where the last record is.
        encoding: what encoders counted, by name.
    """

    def __init__(
        self,
        files: Sequence[InputFile],
        first_file: int = 0,
        base: Mapping[str, SourceIndex] | None = None,
    ) -> None:
        self._files, self._first_file, self._base = files, first_file, base or {}
        self._records_before: Counter[int] = Counter()
        self._gave: set[int] = set()
        self.outputs: dict[str, MergedOutput] = {}
        self.bad_lines = LongColumn(np.dtype(np.uint8))
        self.records = 0
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.encoding: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.first_bad: tuple[RecordPlace, Quarantined] | None = None
        self.last = RecordPlace(files[0], 0)

    def add(self, unit: Unit, receipt: Receipt) -> None:
        """Append the next unit."""
        numbers = np.array([self._first_file + part.file for part in unit.parts], np.uint32)
        first = self._number(unit, receipt)
        for name, wrote in receipt.outputs.items():
            self._gave.update(numbers[np.unique(wrote.columns["part"])].tolist())
            if name not in self.outputs:
                self.outputs[name] = MergedOutput(self._base.get(name))
            self.outputs[name].add(numbers, np.array(first, np.uint64), wrote, receipt.members)
        self.dropped += receipt.dropped
        self.counts += receipt.counts
        self.encoding[receipt.encoder] += receipt.encoding
        for bad in receipt.quarantined:
            place = self._place(unit, first, receipt, bad.part, bad.record)
            self.first_bad = self.first_bad or (place, bad)
            self.reasons[bad.reason] += 1
            line = place.as_json() | {"reason": bad.reason} | _raw(bad.raw)
            self.bad_lines.add(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _number(self, unit: Unit, receipt: Receipt) -> list[int]:
        """The number of the first record of each part in its file."""
        numbers: list[int] = []
        for part, (of_unit, count) in enumerate(zip(unit.parts, receipt.records, strict=True)):
            before = self._records_before[of_unit.file]
            numbers.append(before + reader_of(self._files[of_unit.file].kind).first_number)
            self._records_before[of_unit.file] += count
            self.records += count
            if count:
                self.last = self._place(unit, numbers, receipt, part, count - 1)
        return numbers

    def _place(
        self, unit: Unit, first: Sequence[int], receipt: Receipt, part: int, record: int
    ) -> RecordPlace:
        file = self._files[unit.parts[part].file]
        return RecordPlace(file, first[part] + record, receipt.member(part, record))

    @property
    def statistics(self) -> dict[str, Any]:
        """What is known of the conversion as a whole, by name: counts, and counts by reason.

        All inputs were read; those are discarded that gave no document.
        """
        processed, gave = len(self._files), len(self._gave)
        return {
            "files": {"processed": processed, "successful": gave, "discarded": processed - gave},
            "records": self.records,
            "blank": self.counts["blank"],
            "added": self.counts["added"],
            "quarantined": self.reasons,
            "dropped": self.dropped,
        }


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
