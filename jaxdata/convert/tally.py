"""Reading the texts of one unit, and counting what its receipt will say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.convert.documents import raw_records, text_parser
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.job import Job
from jaxdata.convert.receipts import Quarantined, Receipt
from jaxdata.convert.records import BadRecord
from jaxdata.convert.units import Part, Unit
from jaxdata.format.manifest import ShardEntry

__all__ = ["StoppedAtBad", "Tally"]


class StoppedAtBad(Exception):
    """A bad record, in a conversion that is to stop at the first."""


class Tally:
    """Reads the texts of a unit, and keeps what the receipt says of them."""

    def __init__(self, unit: Unit, job: Job) -> None:
        self._unit, self._job = unit, job
        self._parts: list[int] = []
        self._numbers: list[int] = []
        self._read_bytes = 0
        self._text_bytes = 0
        self.records = [0] * len(unit.parts)
        self.quarantined: list[Quarantined] = []
        self.lengths: NDArray[np.uint32] = np.empty(0, np.uint32)

    def texts(self) -> Iterator[str]:
        """Give the texts of the unit in order."""
        for number, part in enumerate(self._unit.parts):
            yield from self._texts_of_part(number, self._job.files[part.file], part)

    def _texts_of_part(self, number: int, file: InputFile, part: Part) -> Iterator[str]:
        parse, key = text_parser(file), self._job.parameters.text_key
        for record, raw in enumerate(raw_records(file, part, key)):
            self.records[number] = record + 1
            self._read_bytes += len(raw or b"")
            try:
                text = parse(raw, key)
            except BadRecord as bad:
                self._quarantine(Quarantined(number, record, bad.reason, raw, bad.keys))
                continue
            if text is not None:
                self._parts.append(number)
                self._numbers.append(record)
                self._text_bytes += len(text.encode())
                yield text

    def _quarantine(self, bad: Quarantined) -> None:
        self.quarantined.append(bad)
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def share(self) -> float:
        """Return how much of the unit has been read, 0 to 1, as well as that is known."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))

    def receipt(self, shard: ShardEntry | None) -> Receipt:
        """Return the receipt of the unit, of the documents that were written."""
        return Receipt(
            records=self.records,
            lengths=self.lengths,
            part=np.array(self._parts[: len(self.lengths)], np.uint32),
            record=np.array(self._numbers[: len(self.lengths)], np.uint32),
            text_bytes=self._text_bytes,
            quarantined=self.quarantined,
            shard=shard,
        )
