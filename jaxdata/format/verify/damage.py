"""Damage of a single file or column: it is not what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.format.checksums import ends_with_checksum, json_checksum_holds
from jaxdata.format.storage import Store, scan_array

_DIFFERS = "its content differs from its checksum"
_Buffer = memoryview | bytes


@dataclass(frozen=True)
class Damage:
    """One damaged file."""

    file: str
    """its name in the dataset; for a column, the folder of its chunks"""
    what: str
    remedy: str = ""
    """if not the same as for most files"""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}{self.remedy and '; '}{self.remedy}"


def damage_of_manifest(store: Store, name: str) -> tuple[tuple[Damage, ...], tuple[str, ...]]:
    """The damage of a decodable file that describes others, and its name if it has no checksum."""
    holds = json_checksum_holds(store.read(name) or b"{}")
    damage = Damage(name, f"{_DIFFERS}, so what it says of other files may be wrong")
    return () if holds in (None, True) else (damage,), (name,) if holds is None else ()


def damage_of_file(
    store: Store,
    name: str,
    sha256: str,
    size: int | None = None,
    look: Callable[[_Buffer, int], None] | None = None,
) -> list[Damage]:
    """Read a file and compare it with its checksum; `look` gets each buffer and its offset."""
    content, read = hashlib.sha256(), 0
    try:
        for buffer in store.scan(name, size):
            content.update(buffer)
            if look:
                look(buffer, read)
            read += len(buffer)
            if size is not None and read > size:
                return [Damage(name, f"it has more than {size:,} bytes")]
    except (DatasetError, OSError, ValueError) as error:
        return [unreadable(name, error)]
    if size is not None and read != size:
        return [Damage(name, f"it has {read:,} bytes, not {size:,}")]
    return [] if content.hexdigest() == sha256 else [Damage(name, _DIFFERS)]


def damage_of_cached(store: Store, name: str) -> list[Damage]:
    """Compare a file that was computed from the others with the checksum at its end."""
    try:
        what = "" if ends_with_checksum(store.scan(name)) else _DIFFERS
    except (DatasetError, OSError, ValueError):
        what = "it cannot be read" if store.exists(name) else ""  # deleted meanwhile
    return [Damage(name, what, "delete it; it is computed again when needed")] * bool(what)


def damage_of_hashes(store: Store, name: str) -> list[Damage]:
    """Compare a file of hashes of inputs with its own checksum."""
    try:
        holds = json_checksum_holds(store.read(name) or b"")
    except (DatasetError, OSError) as error:
        return [unreadable(name, error)]
    except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, or no object
        holds = False
    remedy = "restore it, or delete it: then inputs that changed are not noticed"
    return [] if holds else [Damage(name, _DIFFERS, remedy)]


def damage_of_array(
    store: Store, name: str, sha256: str | None, dtype: type[np.generic], size: int | None
) -> list[Damage]:
    """Read an array of `size` entries, and compare it with its checksum; None if unknown."""
    try:
        stored, buffers = scan_array(store, name)
        if stored.dtype != dtype:
            return [Damage(name, f"it is of {stored.dtype.name}, not {dtype.__name__}")]
        if size is not None and stored.size != size:
            return [Damage(name, f"it has {stored.size:,} entries, not {size:,}")]
        content = _sha256(buffers)
    except (DatasetError, OSError, ValueError) as error:
        return [unreadable(name, error)]
    return [] if sha256 in (None, content) else [Damage(name, _DIFFERS)]


def _sha256(buffers: Iterable[_Buffer]) -> str:
    content = hashlib.sha256()
    for buffer in buffers:
        content.update(buffer)
    return content.hexdigest()


def unreadable(file: str, error: Exception) -> Damage:
    """The damage of a file that cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return Damage(file, f"it cannot be read: {error.strerror}")
    return Damage(file, str(error))
