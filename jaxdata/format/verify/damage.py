"""What can be wrong with a file or a column by itself: that it is not what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.format.sealed import seal_holds
from jaxdata.format.storage import DIGEST_BYTES, Store, array_pieces

__all__ = [
    "Damage",
    "damage_of_array",
    "damage_of_file",
    "damage_of_kept",
    "damage_of_manifest",
    "unreadable",
]

_DIFFERS = "its content differs from its checksum"
_Piece = memoryview | bytes


@dataclass(frozen=True)
class Damage:
    """One file that is not as it should be.

    Attributes:
        file: its name in the dataset; of a column, the folder of its chunks.
        what: what is wrong with it.
        remedy: what to do, where that is not what helps most files.
    """

    file: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}{self.remedy and '; '}{self.remedy}"


def damage_of_manifest(store: Store, name: str) -> tuple[tuple[Damage, ...], tuple[str, ...]]:
    """Compare a file that says what others are with its own checksum; it can be decoded.

    Returns:
        Its damage, and its name where it has no checksum.
    """
    holds = seal_holds(store.read(name) or b"{}")
    what = f"{_DIFFERS}, so what it says of other files may be wrong"
    return () if holds in (None, True) else (Damage(name, what),), (name,) if holds is None else ()


def damage_of_file(
    store: Store,
    name: str,
    sha256: str,
    size: int | None = None,
    look: Callable[[_Piece, int], None] | None = None,
) -> list[Damage]:
    """Read a file and compare it with its checksum.

    Args:
        store: where it is.
        name: its name.
        sha256: of its content.
        size: its bytes, where they are known.
        look: called with each piece of the file and the byte that it begins at.
    """
    content, read = hashlib.sha256(), 0
    try:
        for piece in store.pieces(name):
            content.update(piece)
            if look:
                look(piece, read)
            read += len(piece)
    except (DatasetError, OSError, ValueError) as error:
        return [unreadable(name, error)]
    if size is not None and read != size:
        return [Damage(name, f"it has {read:,} bytes, not {size:,}")]
    return [] if content.hexdigest() == sha256 else [Damage(name, _DIFFERS)]


def damage_of_kept(store: Store, name: str) -> list[Damage]:
    """Read a file that was made from the others, and compare it with the sha256 at its end."""
    content, end = hashlib.sha256(), b""
    try:
        for piece in store.pieces(name):
            data = end + piece
            content.update(data[:-DIGEST_BYTES])
            end = data[-DIGEST_BYTES:]
        what = "" if content.digest() == end else _DIFFERS
    except DatasetError:
        return []  # deleted meanwhile
    except (OSError, ValueError) as error:
        what = unreadable(name, error).what
    return [Damage(name, what, "delete it, and it is made again when it is needed")] * bool(what)


def damage_of_array(
    store: Store, name: str, sha256: str | None, dtype: type[np.generic], size: int | None
) -> list[Damage]:
    """Read an array, without keeping it, and compare it with its checksum where it has one.

    Args:
        store: where it is.
        name: its name.
        sha256: of its values; None where that is not known.
        dtype: of its entries.
        size: how many; None where that is not known.
    """
    try:
        layout, pieces = array_pieces(store, name)
        if layout.dtype != dtype:
            return [Damage(name, f"it is of {layout.dtype.name}, not {dtype.__name__}")]
        if size is not None and layout.size != size:
            return [Damage(name, f"it has {layout.size:,} entries, not {size:,}")]
        content = _sha256(pieces)
    except (DatasetError, OSError, ValueError) as error:
        return [unreadable(name, error)]
    return [] if sha256 in (None, content) else [Damage(name, _DIFFERS)]


def _sha256(pieces: Iterable[_Piece]) -> str:
    content = hashlib.sha256()
    for piece in pieces:
        content.update(piece)
    return content.hexdigest()


def unreadable(file: str, error: Exception) -> Damage:
    """Damage that keeps a file from being read."""
    if isinstance(error, OSError) and error.strerror:
        return Damage(file, f"it cannot be read: {error.strerror}")
    return Damage(file, str(error))
