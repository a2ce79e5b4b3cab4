"""Harm that is done on purpose, to a file of a folder whose files may be linked elsewhere."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxdata.base.errors import digest

Harm = Callable[[Path], object]
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


def set_value(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value of nested ones."""

    def change(fields: Any) -> None:
        *before, last = path
        for key in before:
            fields = fields[key]
        fields[last] = to

    return change


def changed(edit: Callable[[bytes], bytes]) -> Harm:
    """Other content."""

    def work(path: Path) -> None:
        was = path.read_bytes()
        path.unlink()
        path.write_bytes(edit(was))

    return work


def content(data: bytes) -> Harm:
    return changed(lambda _: data)


flip = changed(
    lambda was: was[: (half := len(was) // 2)] + bytes([was[half] ^ 1]) + was[half + 1 :]
)


def sealed(*changes: Callable[[dict[str, Any]], object]) -> Harm:
    """Other values in a JSON file, and its checksum with them."""

    def edit(was: bytes) -> bytes:
        fields = json.loads(was)
        for change in changes:
            change(fields)
        return seal(fields)

    return changed(edit)
