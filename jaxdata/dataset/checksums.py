"""What files carry to show damage: content with its own sha256, and what is said where it differs.

Of bytes the sha256 is at their end, of JSON under the key `sha256`: of its values, not of how they
are written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.storage import Store, scan_array

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


def read_json(
    store: Store, name: str, model: type[_Model], version: int, *, compare: bool = True
) -> _Model | None:
    """The model in a JSON file, as :func:`decode_json` decodes it; None if there is no file."""
    url = f"{store.url}/{name}"
    try:
        data = store.read(name)
    except OSError as error:
        raise DatasetError(f"{url} cannot be read: {error.strerror or error}") from error
    return None if data is None else decode_json(data, url, model, version, compare=compare)


def decode_json(
    data: bytes, url: str, model: type[_Model], version: int | None = None, *, compare: bool = True
) -> _Model:
    """The model in a JSON file.

    Args:
        data: its content.
        url: what messages call it.
        model: says what it may hold.
        version: the format version it must have; None if it has none.
        compare: raise also if it differs from its checksum. Files of an earlier jaxdata have none.

    Raises:
        DatasetError: the file is not a `model` of this `version`, or differs from its checksum.
    """
    try:
        fields = json.loads(data)
        if version is not None and fields["version"] != version:
            raise DatasetError(
                f"{url} has format version {_line(str(fields['version']), 20)}; this jaxdata "
                f"reads version {version}: make it again, or install the jaxdata that wrote it"
            )
        whole = _without_checksum(fields)
        found = model.model_validate(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{url} is damaged ({_cause(error)}): restore it from a copy") from None
    if compare and whole is False:
        raise DatasetError(
            f"{url} differs from its checksum: restore it from a copy; if you edited it, "
            f'remove its line "{_KEY}"'
        )
    return found


def json_checksum_holds(data: bytes) -> bool | None:
    """Whether a decodable JSON file equals its checksum; None if it has none."""
    return _without_checksum(json.loads(data))


def _without_checksum(fields: dict[str, Any]) -> bool | None:
    """Remove the checksum of some fields; whether they equal it, None if there was none."""
    expected = fields.pop(_KEY, None)
    return None if expected is None else bool(expected == digest(fields))


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
        for buffer in store.scan(name):
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
