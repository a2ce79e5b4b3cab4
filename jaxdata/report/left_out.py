"""What conversions left out of a dataset: how many records, why, and a few of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxdata.documents.converted import ConvertedDataset, ConvertedDocuments
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import DatasetError
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
    """The first quarantined records of each source."""
    if not isinstance(dataset, ConvertedDataset):
        return []
    names = [n for n in dataset.manifest.files if n.split("/")[-1].startswith("quarantine")]
    return [record for name in sorted(names) for record in _first(dataset, name)]


def _first(dataset: ConvertedDataset, name: str) -> Iterator[BadRecord]:
    """Of a file that may be gone, as it is a list for people to look at and delete."""
    try:
        begin = bytes(next(iter(dataset.store.scan(name)), b""))
    except (DatasetError, OSError):
        return
    for line in begin.split(b"\n")[:-1][:_RECORDS]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield _bad(name.rpartition("/")[0], record)


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
