"""The receipts of a whole conversion, put together."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.parts import Unit
from jaxdata.convert.places import Place, place_of
from jaxdata.convert.receipts import Members, OutputReceipt, Quarantined, Receipt
from jaxdata.convert.statistics import COUNTED
from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import ShardEntry
from jaxdata.format.members import Member, MemberTable

__all__ = ["Collected", "CollectedOutput"]

_NONE = np.empty(0, np.uint8)
_PIECE_BYTES = 2**20


class CollectedOutput:
    """What all units wrote to one source.

    Attributes:
        shards: its files, in order.
        counts: statistics of its documents.
    """

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115 (goes with this object)
        self._lengths: list[np.ndarray] = []
        self._origin_file: list[np.ndarray] = []
        self._origin_row: list[np.ndarray] = []
        self._members = MemberTable()
        self.shards: list[ShardEntry] = []
        self.counts: Counter[str] = Counter()

    @classmethod
    def of(cls, index: SourceIndex) -> CollectedOutput:
        """A source that is there."""
        output = cls()
        output._lengths.append(index.lengths)
        output._origin_file.append(index.origin_file)
        output._origin_row.append(index.origin_row)
        output.shards += index.entry.shards
        known = index.entry.statistics.items()
        output.counts.update({name: n for name, n in known if name in COUNTED})
        if index.entry.parameters.get("keep"):
            output._kept.write(index.kept_lines.data)
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

        Args:
            files: uint32 (parts,), the file of each part of the unit.
            rows: uint64 (parts,), the number of the part's first record in it.
            wrote: the documents.
            members: where the unit met files of archives.
        """
        self._lengths.append(wrote.lengths)
        self._origin_file.append(files[wrote.part])
        self._origin_row.append(rows[wrote.part] + wrote.record)
        self.shards.append(wrote.shard)
        self.counts += wrote.counts
        self._kept.write(wrote.kept)
        for part, starts in sorted(members.items()):
            own = wrote.record[slice(*np.searchsorted(wrote.part, [part, part + 1]))]
            for start, member in _met(starts, own):
                self._members.add(int(files[part]), int(rows[part]) + start, member)

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """uint32 (documents,): tokens with EOD."""
        return _joined(self._lengths, np.uint32)

    @property
    def origin_file(self) -> NDArray[np.uint32]:
        """uint32 (documents,): number of the input file."""
        return _joined(self._origin_file, np.uint32)

    @property
    def origin_row(self) -> NDArray[np.uint64]:
        """uint64 (documents,): line (from 1) or row (from 0) in that file."""
        return _joined(self._origin_row, np.uint64)

    @property
    def members(self) -> dict[str, NDArray[Any]]:
        """The files of archives that documents came from, as columns; nothing without any."""
        return self._members.columns() if len(self._members) else {}

    @property
    def kept(self) -> NDArray[np.uint8]:
        """uint8: lines of JSON with the kept fields, one a document; mapped, as it may be large."""
        self._kept.flush()
        size = self._kept.tell()
        return np.memmap(self._kept, np.uint8, "r", shape=(size,)) if size else _NONE


class Collected:
    """The receipts of a whole conversion, their records numbered within the files.

    Args:
        files: the inputs.
        bad_lines: an empty file for what goes to quarantine, which may not fit in memory.
        first_file: the number of the first input, where documents are added to sources.

    Attributes:
        outputs: the sources, by `"<split>/<source>"`.
        fed: the names of those that got a document.
        records: records of the inputs.
        dropped: number of records and documents that were left out, by reason.
        counts: statistics of all units.
        last: where the last record is.
        first_bad: the first bad record, and where it is; None without one.
    """

    def __init__(
        self,
        files: list[InputFile],
        bad_lines: IO[bytes],
        first_file: int = 0,
    ) -> None:
        self._files, self._first_file = files, first_file
        self._records_before: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()
        self._bad_lines = bad_lines
        self.outputs: dict[str, CollectedOutput] = {}
        self.records = 0
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.first_bad: tuple[Place, Quarantined] | None = None
        self._gave: set[int] = set()
        self.last = Place(files[0], 0)
        self.fed: set[str] = set()

    def begin_with(self, name: str, index: SourceIndex) -> None:
        """Take an output as it is: what is added comes after that."""
        self.outputs[name] = CollectedOutput.of(index)

    def add(self, unit: Unit, receipt: Receipt) -> None:
        """Append the next unit."""
        numbers = np.array([self._first_file + part.file for part in unit.parts], np.uint32)
        first = self._number(unit, receipt)
        rows = np.array(first, np.uint64)
        for name, wrote in receipt.outputs.items():
            self._gave.update(numbers[np.unique(wrote.part)].tolist())
            output = self.outputs.setdefault(name, CollectedOutput())
            self.fed.add(name)
            output.add(numbers, rows, wrote, receipt.members)
        self.dropped += receipt.dropped
        self.counts += receipt.counts
        for bad in receipt.quarantined:
            file = self._files[unit.parts[bad.part].file]
            self._quarantine(place_of(file, first[bad.part], receipt, bad.part, bad.record), bad)

    def _number(self, unit: Unit, receipt: Receipt) -> list[int]:
        """The number of the first record of each part in its file."""
        numbers = []
        for part, (of_unit, count) in enumerate(zip(unit.parts, receipt.records, strict=True)):
            file = self._files[of_unit.file]
            numbers.append(self._records_before[of_unit.file] + file.kind.first_number)
            self._records_before[of_unit.file] += count
            self.records += count
            if count:
                self.last = place_of(file, numbers[-1], receipt, part, count - 1)
        return numbers

    def _quarantine(self, place: Place, bad: Quarantined) -> None:
        self.first_bad = self.first_bad or (place, bad)
        self._reasons[bad.reason] += 1
        line = place.as_json() | {"reason": bad.reason} | _raw(bad.raw)
        self._bad_lines.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    @property
    def files(self) -> dict[str, int]:
        """The inputs: all were read, and those are discarded that gave no document."""
        processed, successful = len(self._files), len(self._gave)
        discarded = processed - successful
        return {"processed": processed, "successful": successful, "discarded": discarded}

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


def _joined(columns: list[np.ndarray], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *columns])


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
