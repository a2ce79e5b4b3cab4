"""Reading the documents of one unit, and counting what its receipt will say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxdata.convert.contents import Raw, raw_records
from jaxdata.convert.documents import parse
from jaxdata.convert.job import Job
from jaxdata.convert.parts import Part, Unit
from jaxdata.convert.receipts import OutputReceipt, Quarantined, Receipt
from jaxdata.convert.records import BadRecord
from jaxdata.convert.splitting import Unreadable
from jaxdata.convert.tasks import Dropped, Record, Task

__all__ = ["Document", "StoppedAtBad", "Tally"]


class StoppedAtBad(Exception):
    """A bad record, in a conversion that is to stop at the first."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document on its way to its shard.

    Attributes:
        content: what the task made of it.
        part: number of its part in the unit.
        record: number of its record in the part.
        split: the split it goes to.
        characters: of its texts.
        text_bytes: of its texts in UTF-8.
        kept: a line of JSON with the fields to keep.
    """

    content: Any
    part: int
    record: int
    split: str
    characters: int
    text_bytes: int
    kept: bytes = b""


class Tally:
    """Reads the documents of a unit, and keeps what the receipt says of what became none."""

    def __init__(self, unit: Unit, job: Job, task: Task) -> None:
        self._unit, self._job, self._task = unit, job, task
        self._read_bytes = 0
        self._records = [0] * len(unit.parts)
        self._quarantined: list[Quarantined] = []
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def documents(self) -> Iterator[Document]:
        """Give the documents of the unit in order."""
        for number, part in enumerate(self._unit.parts):
            yield from self._documents_of_part(number, part)

    def _documents_of_part(self, number: int, part: Part) -> Iterator[Document]:
        file = self._job.files[part.file]
        text_key, settings = self._job.parameters.text_key, self._job.reading(self._task)
        for place, raw in enumerate(raw_records(file, part, settings)):
            self._records[number] = place + 1
            self._read_bytes += len(raw) if isinstance(raw, bytes) else 0
            try:
                record = parse(raw, text_key)
                if record is None:
                    self.counts["blank"] += 1
                else:
                    yield from self._documents_of(record, number, place)
            except BadRecord as bad:
                self._quarantine(Quarantined(number, place, bad.reason, _raw(raw), bad.keys))
            except Dropped as dropped:
                self.dropped[dropped.reason] += 1

    def _documents_of(self, record: Record, part: int, place: int) -> Iterator[Document]:
        contents = self._task.prepare(record)
        if not contents:
            raise Dropped("nothing in it")
        self.counts["added"] += len(contents) - 1
        for content in contents:
            texts = self._task.texts(content)
            characters = sum(map(len, texts))
            text_bytes = sum(len(text.encode()) for text in texts)
            yield Document(content, part, place, self._job.split, characters, text_bytes)

    def _quarantine(self, bad: Quarantined) -> None:
        self._quarantined.append(bad)
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def share(self) -> float:
        """Return how much of the unit has been read, 0 to 1, as well as that is known."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))

    def receipt(self, outputs: dict[str, OutputReceipt]) -> Receipt:
        """Return the receipt of the unit, with what was written."""
        return Receipt(self._records, outputs, self._quarantined, self.dropped, self.counts)


def _raw(raw: Raw) -> bytes | None:
    """What quarantine keeps: the bytes, or those of the only column, or the row as JSON."""
    if isinstance(raw, Unreadable):
        return raw.raw
    if isinstance(raw, dict) and len(raw) == 1:
        (raw,) = raw.values()
    return raw if raw is None or isinstance(raw, bytes) else json.dumps(raw, default=str).encode()
