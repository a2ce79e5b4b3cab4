"""The receipts of a whole source, put together."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.receipts import Quarantined, Receipt
from jaxdata.convert.units import Unit

__all__ = ["Collected"]


class Collected:
    """The receipts of a whole source, their records numbered within the files."""

    def __init__(self, files: list[InputFile], work: Sequence[tuple[Unit, Receipt]]) -> None:
        self._files = files
        self.receipts: list[Receipt] = []
        self._origin_file: list[np.ndarray] = []
        self._origin_row: list[np.ndarray] = []
        self.quarantined: list[tuple[InputFile, int, Quarantined]] = []
        self._records_before: Counter[int] = Counter()
        for unit, receipt in work:
            self.add(unit, receipt)

    def add(self, unit: Unit, receipt: Receipt) -> None:
        """Append the next unit."""
        self.receipts.append(receipt)
        numbers = [part.file for part in unit.parts]
        first = [self._records_before[file] + self._files[file].first_number for file in numbers]
        self._records_before.update(dict(zip(numbers, receipt.records, strict=True)))
        self._origin_file.append(np.array(numbers, np.uint32)[receipt.part])
        self._origin_row.append(np.array(first, np.uint64)[receipt.part] + receipt.record)
        for bad in receipt.quarantined:
            file = self._files[numbers[bad.part]]
            self.quarantined.append((file, first[bad.part] + bad.record, bad))

    @property
    def lengths(self) -> np.ndarray:
        """uint32 (documents,): tokens with EOD."""
        return _joined([receipt.lengths for receipt in self.receipts], np.uint32)

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
        return dict(sorted(Counter(bad.reason for _, _, bad in self.quarantined).items()))

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(receipt.text_bytes for receipt in self.receipts)

    def quarantine_lines(self) -> Iterator[bytes]:
        """Lines of the quarantine file; nothing of a bad record is lost."""
        for file, row, bad in self.quarantined:
            place = {"file": file.name, "row" if file.format == "parquet" else "line": row}
            line = place | {"reason": bad.reason} | _raw(bad.raw)
            yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _joined(columns: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *columns])


def _raw(raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {"raw": None}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
