"""What files carry to show damage: content with its own sha256, and what is said where it differs.

Of bytes the sha256 is at their end, of JSON under the key `sha256`: of its values, not of how they
are written.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.wording import on_one_line, shortened
from jaxdata.storage import Store

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
                f"{url} has format version {shortened(on_one_line(fields['version']), 20)}; this "
                f"jaxdata reads version {version}: make it again, or install the jaxdata that "
                "wrote it"
            )
        whole = fields.pop(_KEY, None) == digest(fields)
        found = model.model_validate(fields)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(f"{url} is damaged ({_cause(error)}): restore it from a copy") from None
    if not whole:
        raise DatasetError(f"{url} differs from its checksum: restore it from a copy")
    return found


def _cause(error: Exception) -> str:
    """Why a file cannot be read, in a line without what else it says."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors()[0]
    place, kind, given = ".".join(map(str, first["loc"])), first["type"], first["input"]
    problem = first["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        problem = f"{given!r} is not the name of a file below it"
    elif kind in ("greater_than_equal", "less_than_equal"):
        problem += f", not {given}"
    return shortened(on_one_line(f"{place}{place and ': '}{problem}"), 300)
