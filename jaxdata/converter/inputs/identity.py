"""What tells an input file from another, without reading all of it.

Its digest is over its size, head and tail: a parameter of the conversion. Its stamp says whether
anybody may have touched the file since it was looked at.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.read_errors import reading
from jaxdata.format.storage.objects import Facts, place_of

HEAD = 2**16
"""Bytes of the head, and of the tail."""
_CLOCKS = 60 * 10**9
"""ns that the clock of a bucket may be behind ours."""


class Look(NamedTuple):
    """A look at a file."""

    size: int
    head: bytes
    tail: bytes
    stamp: int

    @property
    def digest(self) -> str:
        """16 hex digits over size, head and tail; not over path and time."""
        known = str(self.size).encode() + self.head + self.tail
        return hashlib.sha256(known).hexdigest()[:16]


def look_at(path: str, known_size: int | None = None) -> Look:
    """Look at a file; what was added to it after its known size is no part of it."""
    with reading(path), open(path, "rb") as file:  # noqa: PTH123 (a Path costs more than this)
        facts = os.fstat(file.fileno())
        size = facts.st_size if known_size is None else known_size
        head = file.read(HEAD)[:size]
        file.seek(max(0, size - HEAD))
        tail = file.read(HEAD) if size > len(head) else head
    return Look(size, head, tail[:size], _stamp(facts))


def look_at_object(url: str, facts: Facts) -> Look:
    """Look at the version of an object that has these facts."""
    place, size = place_of(url), facts.size
    head = place.read(url, 0, min(HEAD, size), facts.tag)
    tail = place.read(url, size - HEAD, size, facts.tag) if size > HEAD else head
    return Look(size, head, tail, _number(f"{size} {facts.tag}"))


def written_at(file: InputFile) -> int:
    """When a file was last written, in ns since 1970; of an object, at the latest."""
    if not file.is_object:
        facts = file.path.stat()
        return max(facts.st_mtime_ns, facts.st_ctime_ns)
    found = place_of(file.url).look(file.url)
    return found.modified + _CLOCKS if found else 0


def changed_since(files: Iterable[InputFile]) -> list[InputFile]:
    """Those of some files whose stamps have changed, as they are now but for their size.

    A file that is gone is not needed any more, and what was added to one was read by nobody.
    """
    return [new for file in files if (new := _now(file)) != file]


def _now(file: InputFile) -> InputFile:
    if file.is_object:  # nobody can have read another version
        return file
    path = file.path
    try:
        if _stamp(path.stat()) == file.stamp:
            return file
    except FileNotFoundError:
        return file
    look = look_at(str(path), file.size)
    return file._replace(digest=look.digest, stamp=look.stamp)


def stamp_of(files: Iterable[InputFile]) -> str:
    """16 hex digits over the stamps of files."""
    return _hashed(",".join(str(file.stamp) for file in files)).hex()


def _stamp(facts: os.stat_result) -> int:
    """64 bits that differ when a file may have changed.

    The time of the inode's change counts too: a program that edits a file can set the other back.
    """
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    return _number(repr(seen))


def _number(text: str) -> int:
    return int.from_bytes(_hashed(text), "big")


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
