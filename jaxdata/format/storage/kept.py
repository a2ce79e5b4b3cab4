"""Files that are made once and kept: beside the data, or where that cannot be, for the user.

Nothing else says what is in them, so they end with the sha256 of what comes before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from jaxdata.format.storage.local import LocalStore

__all__ = ["DIGEST_BYTES", "KEPT_ARRAYS", "kept_file", "sealed", "unsealed", "user_cache"]

DIGEST_BYTES = 32
KEPT_ARRAYS = ".sealed.arrays"
"""How files of arrays are called; they are mapped, so only `jaxdata verify` reads the sha256."""


def user_cache() -> LocalStore:
    """`$JAXDATA_CACHE`, or `~/.cache/jaxdata`."""
    return LocalStore(os.environ.get("JAXDATA_CACHE", "~/.cache/jaxdata"))


def kept_file(name: str, write: Callable[[Path], None], beside: LocalStore | None = None) -> Path:
    """The path of a file that was made before, or is now, by `write(path)`.

    Args:
        name: what it is kept as; it has to change with what is written.
        write: writes all of it to a path; readers see it when that is done.
        beside: where to keep it if that can be written, instead of the user's cache.
    """
    places = [user_cache()] if beside is None else [beside, user_cache()]
    for place in places:
        path = Path(place.url) / name
        if path.is_file():
            return path
    try:
        return _write(places[0], name, write)
    except OSError:
        if beside is None:
            raise
        return _write(places[1], name, write)


def _write(place: LocalStore, name: str, write: Callable[[Path], None]) -> Path:
    with place.create(name) as path:
        write(path)
    return Path(place.url) / name


def sealed(content: bytes) -> bytes:
    """What is kept of some bytes.

    >>> unsealed(sealed(b"rows"))
    b'rows'
    """
    return content + hashlib.sha256(content).digest()


def unsealed(data: bytes) -> bytes | None:
    """The bytes that were kept; None where they are not as they were."""
    content = data[:-DIGEST_BYTES]
    return content if sealed(content) == data else None
