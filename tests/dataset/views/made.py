"""Datasets with views, for the tests of this folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import jaxdata
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import SourceView, TokenRanges
from jaxdata.dataset.views.writing import write_views
from tests.converter.here import run_here

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


def masking(*ranges: tuple[int, int, int]) -> TokenRanges:
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    return TokenRanges.of(*columns, reason=1)


@st.composite
def views(draw: st.DrawFn, documents: int) -> SourceView:
    """Any view of so many documents: copies, ranges masked and cut in any order, nothing kept."""
    numbers = st.integers(0, documents - 1)
    dropped = sorted(draw(st.sets(numbers)))
    places = st.tuples(numbers, st.integers(0, 40), st.integers(1, 30))
    masked, cut = (
        masking(
            *((d, start, start + size) for d, start, size in draw(st.lists(places, max_size=n)))
        )
        for n in (12, draw(st.sampled_from([0, 12])))
    )
    copies = None
    if draw(st.booleans()):
        copies = np.array(draw(st.lists(st.integers(1, 3), min_size=documents, max_size=documents)))
    more: dict[str, Any] = {"copies": copies, "masked": masked, "cut": cut}
    if draw(st.booleans()):
        survivors = np.array(dropped, np.int64) % 3 - 1
        more |= {"survivor_source": survivors.astype(np.int32), "survivors": ["train/a", "b.jsonl"]}
        more |= {"survivor": np.where(survivors < 0, -1, dropped)}
    return dropping(documents, *dropped, **more)


def listed_by_definition(view: SourceView, lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """What a view lists, one at a time: a document, and the first and last token, exclusive."""
    dropped = set(view.dropped.tolist())
    times = [1] * view.documents if view.copies is None else view.copies.tolist()
    return [
        (document, *piece)
        for document in range(view.documents)
        if document not in dropped
        for piece in _pieces_by_definition(view, document, lengths[document])
        for _ in range(times[document])
    ]


def _pieces_by_definition(view: SourceView, document: int, length: int) -> list[tuple[int, int]]:
    """What is left of a document: runs of two tokens at least, where it is cut at all."""
    if document not in view.cut.document.tolist():
        return [(0, length)]
    left = kept_by_definition(view.cut, document, length)
    runs = "".join("x" if each else " " for each in left)
    found = [match.span() for match in re.finditer("x+", runs)]
    return [span for span in found if span[1] - span[0] > 1 or all(left)]


def kept_by_definition(ranges: TokenRanges, document: int, length: int) -> list[bool]:
    """Whether each token of a document lies outside of ranges, one at a time."""
    document_column, start, stop = (column.tolist() for column in ranges[:3])
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
    run_here(text, folder / "d", **options)
    return folder / "d"
