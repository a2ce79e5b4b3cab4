"""The receipts of a whole conversion put together, without holding them all in memory."""

from __future__ import annotations

import base64
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.inputs.files import InputFile, Unit
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.receipts import Members, OutputReceipt, Quarantined, Receipt, RecordPlace
from jaxdata.converter.statistics import COUNTED, DROPPED
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import ShardEntry

_DERIVED = ("anchor", "kept_end", "member_end")
"""Columns that `write_index` makes of others."""


class LongColumn:
    """A column in the making that may not fit in memory; on disk."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (goes with this object)
        self._dtype = dtype

    def add(self, values: bytes | NDArray[Any]) -> None:
        self._file.write(values if isinstance(values, bytes) else np.ascontiguousarray(values).data)

    @property
    def mapped(self) -> NDArray[Any]:
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
        if index:
            self._begin_with(index)

    def _begin_with(self, index: SourceIndex) -> None:
        self.shards[""] += index.entry.shards
        for side, entry in index.entry.side.items():
            self.shards[side] += entry.shards
        for name in index.columns:
            if name.rpartition(".")[2] not in _DERIVED:
                self._add(name, index.column(name))
        known = index.entry.statistics
        self.counts.update({name: known[name] for name in COUNTED if name in known})

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

    def _add(self, name: str, column: NDArray[Any]) -> None:
        if name not in self._columns:
            self._columns[name] = LongColumn(column.dtype)
        self._columns[name].add(column)

    def columns(self) -> dict[str, NDArray[Any]]:
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
            **{name: self.counts[name] for name in DROPPED},
        }


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
