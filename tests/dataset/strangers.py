"""What a stranger's dataset may do, and what we do with it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxdata.base.facts import digest

_MOST_MEMORY = 64 * 2**20


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
