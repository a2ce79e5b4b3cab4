"""What conversions left out of a dataset: how many records, why, and a few of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxdata.documents.converted import ConvertedDocuments
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import DatasetError
from jaxdata.format.storage import Store
from jaxdata.look.terminal import printable

_RECORDS = 3  # of each source
_CHARACTERS = 200


@dataclass(frozen=True)
class LeftOut:
    """One reason for which records of a source were left out."""

    source: str
    kind: str
    """`"quarantined"`: bad records; `"dropped"`: left out on purpose"""
    reason: str
    records: int


@dataclass(frozen=True)
class BadRecord:
    """A quarantined record."""

    source: str
    place: str
    reason: str
    raw: str
    """its beginning, printable"""


def left_out(dataset: Dataset) -> list[LeftOut]:
    """The reasons by source, as conversions counted them, most records first."""
    found: list[LeftOut] = []
    for name in sorted(dataset.names):
        documents = dataset[name]
        if isinstance(documents, ConvertedDocuments):
            found += _of(name, documents.entry.statistics)
    return sorted(found, key=lambda each: -each.records)


def _of(name: str, statistics: dict[str, Any]) -> Iterator[LeftOut]:
    for kind in ("quarantined", "dropped"):
        reasons = statistics.get(kind)
        for reason, records in (reasons if isinstance(reasons, dict) else {}).items():
            if isinstance(records, int) and records:
                yield LeftOut(printable(name), kind, printable(str(reason)), records)


def bad_records(dataset: Dataset) -> list[BadRecord]:
    """The first quarantined records of each source that still has the file of them."""
    found: dict[tuple[str, str], list[BadRecord]] = {}
    for name in sorted(dataset.names):
        documents = dataset[name]
        if isinstance(documents, ConvertedDocuments) and _quarantined(documents):
            for folder in (documents.name, documents.name.rpartition("/")[0]):
                place = (documents.store.url, f"{folder}/quarantine.jsonl")
                if place not in found and documents.store.exists(place[1]):
                    found[place] = list(_first(documents.store, place[1], name))
    return [record for records in found.values() for record in records]


def _quarantined(documents: ConvertedDocuments) -> bool:
    return any(each.kind == "quarantined" for each in _of("", documents.entry.statistics))


def _first(store: Store, file: str, name: str) -> Iterator[BadRecord]:
    """The first records of a file; none if it cannot be read, as it is only a list to look at."""
    try:
        begin = bytes(next(iter(store.scan(file)), b""))
    except (DatasetError, OSError):
        return
    for line in begin.split(b"\n")[:-1][:_RECORDS]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield _bad(name, record)


def _bad(source: str, record: dict[str, Any]) -> BadRecord:
    places = ("file", "member", "line", "row", "piece")
    place = ", ".join(f"{key} {record[key]}" for key in places if record.get(key) is not None)
    raw = record.get("raw") or record.get("raw_base64") or ""
    return BadRecord(
        printable(source),
        printable(place),
        printable(str(record.get("reason", ""))),
        printable(str(raw)[:_CHARACTERS]),
    )
