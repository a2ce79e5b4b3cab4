"""JSON files that say what a folder holds, each with a checksum of all else that it says.

The checksum is of the values, not of how they are written. Opening does not look at it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from jaxdata.errors import DatasetError

__all__ = ["decode", "digest", "encode", "seal_holds"]

SEAL = "sha256"

_Model = TypeVar("_Model", bound=BaseModel)


def digest(value: Any) -> str:
    """The sha256 of a JSON value, in hex: equal values have equal digests.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def encode(model: BaseModel) -> bytes:
    """The bytes of the file that says what `model` does."""
    fields = json.loads(json.dumps(model.model_dump()))  # the values that a reader will see
    sealed = fields | {SEAL: digest(fields)}
    return json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n"


def decode(data: bytes, url: str, model: type[_Model], version: int) -> _Model:
    """What a file says; raises DatasetError where that is not what `model` of a `version` has."""
    try:
        fields = json.loads(data)
        if fields["version"] != version:
            raise DatasetError(
                f"{url} has format version {fields['version']}; this jaxdata reads version "
                f"{version}: install the jaxdata that wrote it"
            )
        fields.pop(SEAL, None)
        return model.model_validate(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{url} is damaged ({_what(error)}): restore it from a copy") from None


def seal_holds(data: bytes) -> bool | None:
    """Whether a file that can be decoded says what was written; None where it has no checksum."""
    fields = json.loads(data)
    said = fields.pop(SEAL, None)
    return None if said is None else bool(said == digest(fields))


def _what(error: Exception) -> str:
    """What is wrong, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"
