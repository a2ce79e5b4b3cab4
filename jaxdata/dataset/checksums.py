"""What files carry to show damage: content with its own sha256, and what is said where it differs.

Of bytes the sha256 is at their end, of JSON under the key `sha256`: of its values, not of how they
are written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.storage import Store
from jaxdata.storage.zarr import scan_array

CHECKSUM_BYTES = 32
_KEY = "sha256"

_Model = TypeVar("_Model", bound=BaseModel)


def with_checksum(content: bytes) -> bytes:
    """Some bytes followed by their sha256.

    >>> checked_bytes(with_checksum(b"rows"))
    b'rows'
    """
    return content + hashlib.sha256(content).digest()


def checked_bytes(data: bytes) -> bytes | None:
    """The bytes before their checksum; None if they differ from it."""
    content = data[:-CHECKSUM_BYTES]
    return content if with_checksum(content) == data else None


def ends_with_checksum(chunks: Iterable[memoryview | bytes]) -> bool:
    """Whether bytes that come in chunks equal the checksum at their end."""
    content, end = hashlib.sha256(), b""
    for chunk in chunks:
        data = end + chunk
        content.update(data[:-CHECKSUM_BYTES])
        end = data[-CHECKSUM_BYTES:]
    return content.digest() == end


def encode_json(model: BaseModel) -> bytes:
    """A JSON file of a model, with its checksum."""
    fields = json.loads(json.dumps(model.model_dump()))  # the values that a reader will see
    return json.dumps(fields | {_KEY: digest(fields)}, indent=1, sort_keys=True).encode() + b"\n"


def read_json(store: Store, name: str, model: type[_Model], version: int) -> _Model | None:
    """The model in a JSON file, as :func:`decode_json` decodes it; None if there is no file."""
    url = f"{store.url}/{name}"
    try:
        data = store.read(name)
    except OSError as error:
        raise DatasetError(f"{url} cannot be read: {error.strerror or error}") from error
    return None if data is None else decode_json(data, url, model, version)


def decode_json(data: bytes, url: str, model: type[_Model], version: int) -> _Model:
    """The model in a JSON file that `encode_json` made.

    Args:
        data: its content.
        url: what messages call it.
        model: says what it may hold.
        version: the format version it must have.

    Raises:
        DatasetError: the file is not a `model` of this `version`, or differs from its checksum.
    """
    try:
        fields = json.loads(data)
        if fields["version"] != version:
            raise DatasetError(
                f"{url} has format version {_line(str(fields['version']), 20)}; this jaxdata "
                f"reads version {version}: make it again, or install the jaxdata that wrote it"
            )
        whole = _is_whole(fields)
        found = model.model_validate(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{url} is damaged ({_cause(error)}): restore it from a copy") from None
    if not whole:
        raise DatasetError(f"{url} differs from its checksum: restore it from a copy")
    return found


def _is_whole(fields: dict[str, Any]) -> bool:
    """Remove the checksum of some fields; whether they equal it."""
    return bool(fields.pop(_KEY, None) == digest(fields))


def _cause(error: Exception) -> str:
    """Why a file cannot be read, in a line without what else it says."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return _line(f"{place}{place and ': '}{_problem(first)}")


def _problem(error: Any) -> str:
    kind, given = error["type"], error["input"]
    if kind == "string_pattern_mismatch":
        return f"{given!r} is not the name of a file below it"
    if kind in ("greater_than_equal", "less_than_equal"):
        return f"{error['msg']}, not {given}"
    return str(error["msg"].removeprefix("Value error, "))


def _line(text: str, most: int = 300) -> str:
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return shown if len(shown) <= most else f"{shown[:most]}…"


_DIFFERS = "its content differs from its checksum"


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


def damage_of_file(
    store: Store,
    name: str,
    sha256: str,
    size: int | None = None,
) -> list[Damage]:
    """Read a file, which may be known to have `size` bytes, and compare it with its checksum."""
    content, read = hashlib.sha256(), 0
    try:
        for buffer in store.scan(name):
            content.update(buffer)
            read += len(buffer)
            if size is not None and read > size:
                return [Damage(name, f"it has more than {size:,} bytes")]
    except (DatasetError, OSError, ValueError) as error:
        return [_unreadable(name, error)]
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


def damage_of_json(store: Store, name: str, remedy: str) -> list[Damage]:
    """Compare a JSON file with its own checksum."""
    try:
        whole = _is_whole(json.loads(store.read(name) or b""))
    except (DatasetError, OSError) as error:
        return [_unreadable(name, error)]
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        whole = False  # no JSON, or no object
    return [] if whole else [Damage(name, _DIFFERS, remedy)]


def damage_of_array(
    store: Store, name: str, sha256: str, dtype: type[np.generic], size: int | None
) -> list[Damage]:
    """Read an array of `size` entries (None: any number), and compare it with its checksum."""
    content = hashlib.sha256()
    try:
        stored, buffers = scan_array(store, name)
        if stored.dtype != dtype:
            return [Damage(name, f"it is of {stored.dtype.name}, not {dtype.__name__}")]
        if size is not None and stored.size != size:
            return [Damage(name, f"it has {stored.size:,} entries, not {size:,}")]
        for buffer in buffers:
            content.update(buffer)
    except (DatasetError, OSError, ValueError) as error:
        return [_unreadable(name, error)]
    return [] if content.hexdigest() == sha256 else [Damage(name, _DIFFERS)]


def _unreadable(file: str, error: Exception) -> Damage:
    """The damage of a file that cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return Damage(file, f"it cannot be read: {error.strerror}")
    return Damage(file, str(error))
