"""What the readers of foreign formats share: maps, numbers in them, samples, errors."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.cache import cached_file
from jaxdata.format.storage import map_file
from jaxdata.format.storage.objects import AnyPath

_SAMPLE = 64 * 2**10
_MIDDLE_SAMPLE = 4 * 2**10
_MIDDLE_SAMPLES = 64
_NUMBERS_AT_ONCE = 2**20


def check_file(path: AnyPath, needed: str) -> None:
    """Raise DatasetError with the reason it is `needed` unless a file is there."""
    if not path.is_file():
        raise DatasetError(f"{path} is missing: {needed}")


def open_map(path: AnyPath, needed: str) -> memoryview:
    """A file as a memory map; raises DatasetError with the reason it is `needed`.

    Of an object, a copy in the user's cache, which all processes of a host share.
    """
    check_file(path, needed)
    if isinstance(path, Path):
        return map_file(path)
    size = path.stat().st_size
    return cached_file(
        [f"copies/{path.version[:32]}-{path.name}"],
        path.copy_to,
        None,
        lambda copy: map_file(copy) if copy.stat().st_size == size else None,
    )


def damaged(path: AnyPath, found: str, expected: str) -> DatasetError:
    """The error for a damaged file."""
    return DatasetError(f"{path} is damaged: it has {found}, expected {expected}; restore the file")


def check_size(path: AnyPath, expected: int, why: str) -> None:
    """Raise DatasetError unless a file has `expected` bytes."""
    size = path.stat().st_size
    if size != expected:
        short = " and is truncated" if size < expected else ""
        raise damaged(path, f"{size:,} bytes{short}", f"{expected:,} ({why})")


def read_header(
    path: AnyPath, data: memoryview, form: struct.Struct, magic: bytes, tool: str
) -> tuple[Any, ...]:
    """The fields of a header of an index after its magic and its version, which must be 1."""
    if len(data) < form.size:
        raise damaged(path, f"{len(data)} bytes", f"a header of {form.size}")
    found, version, *fields = form.unpack_from(data)
    if found != magic:
        raise damaged(path, f"{found!r} at its beginning", f"{magic!r}, {tool}'s index")
    if version != 1:
        raise damaged(path, f"version {version}", "version 1")
    return tuple(fields)


def numbers(data: memoryview, dtype: str, offset: int, count: int) -> NDArray[Any]:
    """`count` numbers at a byte offset, a read-only view of the map."""
    return np.frombuffer(data, np.dtype(dtype), count, offset)


def gaps(ends: NDArray[Any], problem: Callable[[int], DatasetError]) -> NDArray[Any]:
    """The differences of numbers that must not fall: uint32, or uint64 if one is larger.

    `problem` makes the error for the first place *k* where `ends[k + 1] < ends[k]`.
    """
    found = np.empty(len(ends) - 1, np.uint32)
    for start in range(0, len(found), _NUMBERS_AT_ONCE):
        part = ends[start : start + _NUMBERS_AT_ONCE + 1].astype(np.int64)
        difference = np.diff(part)
        falling = np.flatnonzero(part[1:] < part[:-1])  # a difference may be beyond 64 bits
        if len(falling):
            raise problem(start + int(falling[0]))
        if difference.max(initial=0) >= 2**32:
            return np.diff(ends.astype(np.int64)).astype(np.uint64)
        found[start : start + len(difference)] = difference
    return found


def sample(path: AnyPath) -> str:
    """A digest of a file's size, head, tail, and of samples spread evenly between."""
    size = path.stat().st_size
    content = hashlib.sha256(str(size).encode())
    between = np.linspace(0, size, _MIDDLE_SAMPLES + 2)[1:-1].astype(np.int64).tolist()
    with path.open("rb") as file:
        content.update(file.read(_SAMPLE))
        if size > 2 * _SAMPLE:
            for place in between:
                file.seek(place)
                content.update(file.read(_MIDDLE_SAMPLE))
        file.seek(max(0, size - _SAMPLE))
        content.update(file.read(_SAMPLE))
    return content.hexdigest()
