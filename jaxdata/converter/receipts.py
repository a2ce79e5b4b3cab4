"""Receipts: the commit of a unit, and all that the index is made from.

Those of a whole conversion are put together without holding them all in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, GetPydanticSchema, PlainSerializer, TypeAdapter

from jaxdata.converter.changes import joined_content
from jaxdata.converter.inputs.files import InputFile, Unit
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.statistics import COUNTED
from jaxdata.dataset.archive_members import Member, MemberTable
from jaxdata.dataset.checksums import checked_bytes, with_checksum
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import Count, ShardEntry
from jaxdata.dataset.shards import page_count

Members = dict[int, list[tuple[int, Member]]]
"""For parts of archives: where files of the archive begin or continue, as the number of a record in
the part, and which record of which file it is."""


_CONFIG = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")


def _array(dtype: str) -> Any:
    """How a receipt has a column of its documents: its bytes, little-endian."""
    column = Annotated[
        bytes,
        AfterValidator(lambda data: np.frombuffer(data, dtype)),
        PlainSerializer(lambda array: array.astype(dtype).tobytes(), return_type=bytes),
    ]
    return GetPydanticSchema(lambda _, schema: schema(column))


_Column = Annotated[NDArray[np.uint32], _array("<u4")]
_Hashes = Annotated[NDArray[np.uint64], _array("<u8")]


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
class SideReceipt:
    """What a unit wrote of a side array."""

    __pydantic_config__ = _CONFIG
    shard: ShardEntry
    pages: _Column
    """checksums of the shard's pages"""


@dataclass(frozen=True)
class OutputReceipt:
    """What a unit wrote to one output, that is a source of a split.

    Attributes:
        shard: the file that holds the documents.
        lengths: uint32 (documents,), tokens of each document with EOD.
        part: uint32 (documents,), the part each document came from.
        record: uint32 (documents,), its record's number in that part, from 0.
        pages: uint32 (pages,), checksums of the shard's pages.
        kept: a line of JSON for each document with the fields to keep; empty if there are none.
        counts: statistics that add up over units.
        sides: the shards of side arrays, by name.
        hashes: uint64 (documents * n,), the columns of `HASH_COLUMNS` that are kept.
    """

    __pydantic_config__ = _CONFIG
    shard: ShardEntry
    lengths: _Column
    part: _Column
    record: _Column
    pages: _Column
    kept: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)
    sides: dict[str, SideReceipt] = field(default_factory=dict)
    hashes: dict[str, _Hashes] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """The receipt of one unit.

    Attributes:
        records: records of each part, blank lines included. With those of earlier units they turn
            numbers in a part into numbers in a file.
        outputs: what was written, by `"<split>/<source>"`; only outputs with documents.
        quarantined: the bad records, in order.
        dropped: records and documents left out on purpose, by reason.
        counts: statistics that add up over units: "blank" lines, "added" by records that became
            several documents, and so on. Over all outputs of one stream, documents + quarantined +
            dropped + blank = records + added.
        members: where files of archives begin.
        contents: the hash of each part's records.
        stamp: of the unit's files before they were read, see `files.stamp_of`.
        encoder: what encoded the texts, "fastokens 0.3.5"; "" for the tokenizer's own library.
        encoding: what the encoder counted.
    """

    __pydantic_config__ = _CONFIG
    records: list[Count]
    outputs: dict[str, OutputReceipt]
    quarantined: list[Quarantined]
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    members: Members = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)
    stamp: str = ""
    encoder: str = ""
    encoding: Counter[str] = field(default_factory=Counter)

    def encode(self) -> bytes:
        """Its bytes: JSON, and a checksum."""
        return with_checksum(_receipts().dump_json(self))

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a receipt; raises ValueError if it differs from what was written."""
        content = checked_bytes(data)
        if content is None:
            raise ValueError("a receipt differs from its checksum")
        return _receipts().validate_json(content)

    def check(
        self,
        parts: int,
        outputs: Mapping[str, Collection[str]],
        sides: Collection[str] = (),
    ) -> None:
        """Raise ValueError unless it can be of a unit of so many parts that feeds these outputs.

        `outputs` have the columns of hashes of each, `sides` are the side arrays of all.
        """
        places = [one.part for one in self.quarantined] + list(self.members)
        for name, wrote in self.outputs.items():
            places.append(int(wrote.part.max(initial=0)))
            shard, lengths = wrote.shard, wrote.lengths
            if name not in outputs or shard.name.rpartition("/")[0] != name:
                raise ValueError(f"it wrote {shard.name} for {name}")
            if {len(each) for each in (lengths, wrote.part, wrote.record)} != {shard.documents}:
                raise ValueError(f"its columns of {shard.name} are of unequal lengths")
            if shard.tokens != int(lengths.sum(dtype=np.int64)) or not lengths.all():
                raise ValueError(f"its lengths are not those of {shard.tokens} tokens")
            if len(wrote.pages) != page_count([shard]):
                raise ValueError(f"it has checksums of {len(wrote.pages)} pages of {shard.name}")
            if wrote.sides.keys() != {*sides}:
                raise ValueError(f"it has the side arrays {', '.join(wrote.sides)}")
            for side in wrote.sides.values():
                _check_beside(shard, side)
            if wrote.hashes.keys() != {*outputs[name]}:
                raise ValueError(f"it has the hashes {', '.join(wrote.hashes)}")
        same = {len(self.records), len(self.contents)} == {parts}
        if not same or not all(place < parts for place in places):
            raise ValueError(f"it is not of {parts} parts of files")


def _check_beside(shard: ShardEntry, side: SideReceipt) -> None:
    """Raise ValueError unless the shard of a side array can be of the documents of a shard."""
    folders = {each.name.rpartition("/")[0] for each in (shard, side.shard)}
    same = (shard.documents, shard.tokens) == (side.shard.documents, side.shard.tokens)
    if len(folders) > 1 or not same or len(side.pages) != page_count([side.shard]):
        raise ValueError(f"{side.shard.name} is not beside {shard.name}")


@cache
def _receipts() -> TypeAdapter[Receipt]:
    return TypeAdapter(Receipt)


_COLUMNS = {"lengths": np.uint32, "origin_file": np.uint32, "origin_row": np.uint64}
_PIECE_BYTES = 2**20


class _LongColumn:
    """A column in the making that may not fit in memory; on disk."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (goes with this object)
        self._dtype = np.dtype(dtype)

    def add(self, values: bytes | memoryview) -> None:
        self._file.write(values)

    @property
    def mapped(self) -> NDArray[Any]:
        """All values that were added."""
        self._file.flush()
        size = self._file.tell() // self._dtype.itemsize
        empty = np.empty(0, self._dtype)
        return np.memmap(self._file, self._dtype, "r", shape=(size,)) if size else empty


class MergedOutput:
    """What all units wrote to one source: its shards in order, statistics, index columns."""

    def __init__(self) -> None:
        self._kept = _LongColumn(np.uint8)
        self._hashes: defaultdict[str, _LongColumn] = defaultdict(lambda: _LongColumn(np.uint64))
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._members = MemberTable()
        self._pages: list[NDArray[np.uint32]] = []
        self.shards: list[ShardEntry] = []
        self.sides: dict[str, list[ShardEntry]] = {}
        self._side_pages: defaultdict[str, list[NDArray[np.uint32]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.deleted: dict[str, NDArray[np.uint64]] = {}
        """the column of documents that were deleted; nothing without any"""

    @classmethod
    def of(cls, index: SourceIndex) -> MergedOutput:
        """Begin with an existing source."""
        output = cls()
        output.deleted = {"deleted": index.deleted} if len(index.deleted) else {}
        output._extend(index.stored, index.column("origin_file"), index.column("origin_row"))
        output.shards += index.entry.shards
        output._pages.append(index.column("page"))
        for name, side in index.sides.items():
            output._add_side(name, side.entry.shards, side.column("page"))
        known = index.entry.statistics.items()
        output.counts.update({name: n for name, n in known if name in COUNTED})
        if index.entry.parameters.get("keep"):
            output._kept.add(index.column("kept").data)
        output._add_hashes({name: index.hashes(name) for name in index.hashed})
        if columns := index.member_columns:
            output._members.begin_with(columns)
        return output

    def add(
        self,
        files: NDArray[np.uint32],
        rows: NDArray[np.uint64],
        wrote: OutputReceipt,
        members: Members,
    ) -> None:
        """Append what a unit wrote.

        `files` and `rows`, (parts,), have the file of each part of the unit, and the number of the
        part's first record in it.
        """
        self._extend(wrote.lengths, files[wrote.part], rows[wrote.part] + wrote.record)
        self.shards.append(wrote.shard)
        self._pages.append(wrote.pages)
        for name, side in wrote.sides.items():
            self._add_side(name, [side.shard], side.pages)
        self.counts += wrote.counts
        self._kept.add(wrote.kept)
        self._add_hashes(wrote.hashes)
        for part, starts in sorted(members.items()):
            own = wrote.record[slice(*np.searchsorted(wrote.part, [part, part + 1]))]
            for start, member in _met(starts, own):
                self._members.add(int(files[part]), int(rows[part]) + start, member)

    def _add_hashes(self, hashes: Mapping[str, NDArray[np.uint64]]) -> None:
        for name, column in hashes.items():
            self._hashes[name].add(np.ascontiguousarray(column).data)

    def _add_side(self, name: str, shards: Sequence[ShardEntry], pages: NDArray[np.uint32]) -> None:
        self.sides.setdefault(name, []).extend(shards)
        self._side_pages[name].append(pages)

    def _extend(self, *columns: NDArray[Any]) -> None:
        for parts, column in zip(self._columns.values(), columns, strict=True):
            parts.append(column)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the index, of shape (documents,).

        `lengths`, uint32, are tokens with EOD; `origin_file`, uint32, is the number of the input
        file, and `origin_row`, uint64, the line (from 1) or row (from 0) in it.
        """
        return {
            name: np.concatenate([np.empty(0, dtype), *self._columns[name]])
            for name, dtype in _COLUMNS.items()
        }

    @property
    def pages(self) -> NDArray[np.uint32]:
        """Checksums of the pages of all shards."""
        return np.concatenate(self._pages)

    @property
    def side_pages(self) -> dict[str, NDArray[np.uint32]]:
        """Checksums of the pages of the shards of each side array."""
        return {name: np.concatenate(pages) for name, pages in self._side_pages.items()}

    @property
    def members(self) -> dict[str, NDArray[Any]]:
        """The files of archives that documents came from, as columns; nothing without any."""
        return self._members.columns() if len(self._members) else {}

    @property
    def kept(self) -> NDArray[np.uint8]:
        """uint8: lines of JSON with the kept fields, one a document; mapped, as it may be large."""
        return self._kept.mapped

    @property
    def hashes(self) -> dict[str, NDArray[np.uint64]]:
        """The columns of `HASH_COLUMNS` that were kept, uint64 (documents * n,); mapped, too."""
        return {name: column.mapped for name, column in self._hashes.items()}


class MergedReceipts:
    """The receipts of a whole conversion, their records numbered within the files.

    Args:
        files: the inputs.
        bad_lines: an empty file for what goes to quarantine, which may not fit in memory.
        first_file: the number of the first input, where documents are added to sources.

    Attributes:
        outputs: the sources, by `"<split>/<source>"`; `fed` are those that got a document.
        dropped: records and documents that were left out, by reason.
        last: where the last record is.
        encoding: what encoders counted, by name.
    """

    def __init__(self, files: list[InputFile], bad_lines: IO[bytes], first_file: int = 0) -> None:
        self._files, self._first_file = files, first_file
        self._records_before: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()
        self._bad_lines = bad_lines
        self.outputs: dict[str, MergedOutput] = {}
        self.records = 0
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.first_bad: tuple[RecordPlace, Quarantined] | None = None
        self._gave: set[int] = set()
        self.last = RecordPlace(files[0], 0)
        self.fed: set[str] = set()
        self.encoding: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._contents = [""] * len(files)

    def begin_with(self, name: str, index: SourceIndex) -> None:
        """Take an output as it is: what is added comes after that."""
        self.outputs[name] = MergedOutput.of(index)

    def add(self, unit: Unit, receipt: Receipt) -> None:
        """Append the next unit."""
        for part, content in zip(unit.parts, receipt.contents, strict=True):
            self._contents[part.file] += content
        numbers = np.array([self._first_file + part.file for part in unit.parts], np.uint32)
        first = self._number(unit, receipt)
        rows = np.array(first, np.uint64)
        for name, wrote in receipt.outputs.items():
            self._gave.update(numbers[np.unique(wrote.part)].tolist())
            output = self.outputs.setdefault(name, MergedOutput())
            self.fed.add(name)
            output.add(numbers, rows, wrote, receipt.members)
        self.dropped += receipt.dropped
        self.counts += receipt.counts
        self.encoding[receipt.encoder] += receipt.encoding
        for bad in receipt.quarantined:
            file = self._files[unit.parts[bad.part].file]
            self._quarantine(place_of(file, first[bad.part], receipt, bad.part, bad.record), bad)

    def _number(self, unit: Unit, receipt: Receipt) -> list[int]:
        """The number of the first record of each part in its file."""
        numbers = []
        for part, (of_unit, count) in enumerate(zip(unit.parts, receipt.records, strict=True)):
            file = self._files[of_unit.file]
            numbers.append(self._records_before[of_unit.file] + reader_of(file.kind).first_number)
            self._records_before[of_unit.file] += count
            self.records += count
            if count:
                self.last = place_of(file, numbers[-1], receipt, part, count - 1)
        return numbers

    def _quarantine(self, place: RecordPlace, bad: Quarantined) -> None:
        self.first_bad = self.first_bad or (place, bad)
        self._reasons[bad.reason] += 1
        line = place.as_json() | {"reason": bad.reason} | _raw(bad.raw)
        self._bad_lines.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    @property
    def files(self) -> dict[str, int]:
        """The inputs: all were read, and those are discarded that gave no document."""
        processed, gave = len(self._files), len(self._gave)
        return {"processed": processed, "successful": gave, "discarded": processed - gave}

    @property
    def contents(self) -> dict[str, str]:
        """The hash of each input, by name."""
        pairs = zip(self._files, self._contents, strict=True)
        return {file.name: joined_content(content) for file, content in pairs}

    @property
    def shards(self) -> set[str]:
        """Names of all shards."""
        groups = [
            each for out in self.outputs.values() for each in (out.shards, *out.sides.values())
        ]
        return {shard.name for group in groups for shard in group}

    @property
    def reasons(self) -> dict[str, int]:
        """Number of quarantined records by reason."""
        return dict(sorted(self._reasons.items()))

    def write_quarantine(self, path: Path) -> str:
        """Write the bad records as lines of JSON, in order; returns the sha256 of them."""
        content = hashlib.sha256()
        self._bad_lines.seek(0)
        with path.open("wb") as file:
            while piece := self._bad_lines.read(_PIECE_BYTES):
                content.update(piece)
                file.write(piece)
        return content.hexdigest()


def _met(
    starts: Sequence[tuple[int, Member]], records: NDArray[np.uint32]
) -> Iterator[tuple[int, Member]]:
    """Those of some places in a part that a document of `records` (ascending) comes after."""
    places = np.array([start for start, _ in starts])
    for at in np.unique(np.searchsorted(places, records, "right") - 1).tolist():
        yield starts[at]


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}


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


def member_of(receipt: Receipt, part: int, record: int) -> Member | None:
    """Where a record of a part of a unit is in an archive."""
    starts = receipt.members.get(part, [])
    at = bisect_right(starts, record, key=lambda start: start[0]) - 1
    return starts[at][1].after(record - starts[at][0]) if at >= 0 else None


def place_of(file: InputFile, first: int, receipt: Receipt, part: int, record: int) -> RecordPlace:
    """Where a record of a part of a unit is; `first` is the number of the part's first one."""
    return RecordPlace(file, first + record, member_of(receipt, part, record))
