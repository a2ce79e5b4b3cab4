"""What a stranger's dataset may do, and what we do with it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jaxdata
from jaxdata.facts import digest
from jaxdata.testing import distinct_documents, write_dataset

_MOST_MEMORY = 64 * 2**20
SHARD = "train/web/00000-00000.array_record"
LENGTH = "train/web/index/length"


def write_small(folder: Path) -> Path:
    """Two sources of 20 documents in two shards."""
    documents = distinct_documents([5, 9, 30, 2, 17] * 4)
    write_dataset(folder, {"train/web": documents, "train/code": documents}, shard_documents=12)
    return folder


def read_all(dataset: Path) -> dict[str, list[list[int]]]:
    """What a run does with a dataset, and what people do to look at it; the tokens of it."""
    opened, found = jaxdata.open_dataset(dataset), {}
    entries = opened.manifest.sources.items()  # type: ignore[attr-defined]
    read = [(name, view) for name, entry in entries for view in (None, *entry.views)]
    for name, view in sorted(read, key=str):
        source = opened.source(*name.split("/", 1), documents=view)
        if view is not None:
            for number in range(len(source.base)):  # type: ignore[attr-defined]
                source.view.fate(number)  # type: ignore[attr-defined]
                source.view.ranges_of(number)  # type: ignore[attr-defined]
        for number in range(len(source)):
            source.origin(number)  # type: ignore[attr-defined]
            source.kept(number)  # type: ignore[attr-defined]
        rows = jaxdata.pack(source, seq_len=64)
        for number in range(len(rows)):
            assert rows[number]["inputs"].shape == (64,)
        found[f"{name} through {view}" if view else name] = [
            source[number]["tokens"].tolist() for number in range(len(source))
        ]
    return found


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail if a stranger's numbers become large arrays, or a file is read without end."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY
    finally:
        tracemalloc.stop()


def seal(fields: dict[str, Any]) -> bytes:
    """JSON with the checksum of its values."""
    fields = {name: value for name, value in fields.items() if name != "sha256"}
    return json.dumps(fields | {"sha256": digest(fields)}).encode()


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the values of a JSON file, and its checksum with them."""
    fields = json.loads(file.read_bytes())
    change(fields)
    file.write_bytes(seal(fields))


def set_value(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value of nested ones."""

    def change(fields: Any) -> None:
        *before, last = path
        for key in before:
            fields = fields[key]
        fields[last] = to

    return change


def set_key(*path: str, to: str) -> Callable[[dict[str, Any]], None]:
    """A change of one key of nested dicts."""

    def change(fields: Any) -> None:
        *before, last = path
        for key in before:
            fields = fields[key]
        fields[to] = fields.pop(last)

    return change
