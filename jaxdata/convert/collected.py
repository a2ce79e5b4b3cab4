"""The receipts of a whole source, put together."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.receipts import Quarantined, Receipt
from jaxdata.convert.units import Unit
from jaxdata.format.manifest import ShardEntry

__all__ = ["Collected"]


class Collected:
    """The receipts of a whole source, their records numbered within the files.

    Args:
        files: the inputs.
        bad_lines: an empty file for what goes to quarantine, which may not fit in memory.
        receipts: the units in order, each with its receipt.

    Attributes:
        shards: the files of the source, in order.
        text_bytes: UTF-8 bytes of all documents.
        first_bad: the first bad record, with its file and its number there; None without one.
    """

    def __init__(
        self,
        files: list[InputFile],
        bad_lines: IO[bytes],
        receipts: Iterable[tuple[Unit, Receipt]],
    ) -> None:
        self._files = files
        self._lengths: list[np.ndarray] = []
        self._origin_file: list[np.ndarray] = []
        self._origin_row: list[np.ndarray] = []
        self._records_before: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()
        self._bad_lines = bad_lines
        self.shards: list[ShardEntry] = []
        self.text_bytes = 0
        self.first_bad: tuple[InputFile, int, Quarantined] | None = None
        for unit, receipt in receipts:
            self.add(unit, receipt)

    def add(self, unit: Unit, receipt: Receipt) -> None:
        """Append the next unit."""
        numbers = [part.file for part in unit.parts]
        first = [self._records_before[file] + self._files[file].first_number for file in numbers]
        self._records_before.update(dict(zip(numbers, receipt.records, strict=True)))
        self._lengths.append(receipt.lengths)
        self._origin_file.append(np.array(numbers, np.uint32)[receipt.part])
        self._origin_row.append(np.array(first, np.uint64)[receipt.part] + receipt.record)
        self.shards += [receipt.shard] if receipt.shard else []
        self.text_bytes += receipt.text_bytes
        for bad in receipt.quarantined:
            file = self._files[numbers[bad.part]]
            self._quarantine(file, first[bad.part] + bad.record, bad)

    def _quarantine(self, file: InputFile, row: int, bad: Quarantined) -> None:
        self.first_bad = self.first_bad or (file, row, bad)
        self._reasons[bad.reason] += 1
        place = {"file": file.name, "row" if file.format == "parquet" else "line": row}
        line = place | {"reason": bad.reason} | _raw(bad.raw)
        self._bad_lines.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    @property
    def lengths(self) -> np.ndarray:
        """uint32 (documents,): tokens with EOD."""
        return _joined(self._lengths, np.uint32)

    @property
    def origin_file(self) -> np.ndarray:
        """uint32 (documents,): number of the input file."""
        return _joined(self._origin_file, np.uint32)

    @property
    def origin_row(self) -> np.ndarray:
        """uint64 (documents,): line (from 1) or row (from 0) in that file."""
        return _joined(self._origin_row, np.uint64)

    @property
    def reasons(self) -> dict[str, int]:
        """Number of quarantined records by reason."""
        return dict(sorted(self._reasons.items()))

    def write_quarantine(self, path: Path) -> None:
        """Write the bad records as lines of JSON, in order; nothing of them is lost."""
        self._bad_lines.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(self._bad_lines, file)


def _joined(columns: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *columns])


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
