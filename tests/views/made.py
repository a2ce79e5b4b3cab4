"""Datasets with views, for the tests of this folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import jaxdata
from jaxdata.documents.kept import KeptDocuments
from jaxdata.format.manifest import ViewEntry
from jaxdata.views.source_view import MaskedRanges, SourceView
from jaxdata.views.writing import write_views

REASONS = ["near", "benchmark"]


def kept(folder: Path, name: str = "d1", source: str = "web") -> KeptDocuments:
    found = jaxdata.open_dataset(folder).source("train", source, documents=name)
    assert isinstance(found, KeptDocuments)
    return found


def write(
    folder: Path, view: SourceView, name: str = "d1", source: str = "train/web", **given: Any
) -> ViewEntry:
    """Publish a view of one source as it is now."""
    made_of = jaxdata.open_dataset(folder)[source].fingerprint
    made = write_views(
        folder, name, {source: view}, parameters={}, made_of={source: made_of}, **given
    )
    return made[source]


def dropping(documents: int, *dropped: int, **given: Any) -> SourceView:
    return SourceView(
        documents=documents, dropped=np.array(dropped, np.int64), reasons=REASONS, **given
    )


def masking(*ranges: tuple[int, int, int]) -> MaskedRanges:
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    return MaskedRanges(*columns, np.ones(len(ranges), np.uint8))


@st.composite
def views(draw: st.DrawFn, documents: int) -> SourceView:
    """Any view of so many documents: repeats, masked ranges in any order, nothing kept."""
    numbers = st.integers(0, documents - 1)
    dropped = sorted(draw(st.sets(numbers)))
    places = st.tuples(numbers, st.integers(0, 40), st.integers(1, 30))
    ranges = [(d, start, start + size) for d, start, size in draw(st.lists(places, max_size=12))]
    copies = None
    if draw(st.booleans()):
        copies = np.array(draw(st.lists(st.integers(1, 3), min_size=documents, max_size=documents)))
    return dropping(documents, *dropped, copies=copies, masked=masking(*ranges))


def listed_by_definition(view: SourceView) -> list[int]:
    """The documents that a view lists, one at a time."""
    dropped = set(view.dropped.tolist())
    times = [1] * view.documents if view.copies is None else view.copies.tolist()
    return [d for d in range(view.documents) for _ in range(0 if d in dropped else times[d])]


def masked_by_definition(view: SourceView, document: int, length: int) -> list[bool]:
    """Whether each token of a document keeps its loss, one at a time."""
    document_column, start, stop, _ = (column.tolist() for column in view.masked)
    found = [True] * length
    for d, a, b in zip(document_column, start, stop, strict=True):
        for at in range(a, min(b, length)) if d == document else ():
            found[at] = False
    return found


def tree(folder: Path) -> dict[str, str]:
    """The content of every file but plans, leases, and what a killed writer left at the top."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = ((path, path.relative_to(folder).as_posix()) for path in files)
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in names
        if not name.startswith(("plans/", ".tmp-")) and not name.endswith(".lease")
    }


def convert_records(folder: Path, records: list[dict[str, Any]], **options: Any) -> Path:
    """A converted dataset of records, with what they keep; the text is of their fields."""
    text = folder / "records.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ({"text": f"document {n}"} | record for n, record in enumerate(records))
    text.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = {"source": "web", "tokenizer": "bytes", "workers": 1, **options}
    jaxdata.convert(text, output=folder / "d", **made)
    return folder / "d"
