"""Harm that is done on purpose, to a file of a folder whose files may be linked elsewhere."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.facts import digest
from jaxdata.storage import open_store

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


def replaced(make: Callable[[Path], object]) -> Harm:
    """Something else in the place of the file."""

    def work(path: Path) -> None:
        path.unlink()
        make(path)

    return work


def changed(edit: Callable[[bytes], bytes]) -> Harm:
    """Other content."""

    def work(path: Path) -> None:
        content = path.read_bytes()
        replaced(lambda new: new.write_bytes(edit(content)))(path)

    return work


def content(data: bytes) -> Harm:
    return changed(lambda _: data)


def said(old: bytes, new: bytes) -> Harm:
    """Another text in the place of one."""
    return changed(lambda was: was.replace(old, new, 1))


flip = changed(
    lambda was: was[: (half := len(was) // 2)] + bytes([was[half] ^ 1]) + was[half + 1 :]
)
grown, cut = changed(lambda was: was + b"x"), changed(lambda was: was[:-1])
gone = Path.unlink
empty = replaced(Path.touch)
pipe = replaced(os.mkfifo)


def sparse(size: int) -> Harm:
    """So many bytes that take no room on the disk."""

    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return replaced(make)


def exchanged(pattern: str) -> Harm:
    """The content of the last other file of a pattern, and that one's here."""

    def work(path: Path) -> None:
        other = max(path.parent.glob(pattern))
        ours, theirs = path.read_bytes(), other.read_bytes()
        assert ours != theirs
        content(theirs)(path)
        content(ours)(other)

    return work


def sealed(*changes: Callable[[dict[str, Any]], object]) -> Harm:
    """Other values in a JSON file, and its checksum with them."""

    def edit(was: bytes) -> bytes:
        fields = json.loads(was)
        for change in changes:
            change(fields)
        return seal(fields)

    return changed(edit)


def column(edit: Callable[[np.ndarray], Any], *, seal: bool = False) -> Harm:
    """Other values of a column of `train/web`; with `seal`, the manifest has their checksum."""

    def work(path: Path) -> None:
        store = open_store(path.parent)
        sha256 = store.write_array(path.name, np.asarray(edit(store.read_array(path.name).copy())))
        if seal:
            sealed(set_value("sources", "train/web", "checksums", path.name, to=sha256))(
                path.parents[3] / "dataset.json"
            )

    return work
