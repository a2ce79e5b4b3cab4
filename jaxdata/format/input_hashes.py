"""`inputs.json`: hashes of what was read of the inputs of a source, and how they were read.

It lies beside the sources of a conversion; `inputs-1.json` is of the first files that were appended
to them, and so on. No reader needs it: it tells a later conversion which inputs were changed.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from jaxdata.format.bounds import Positive
from jaxdata.format.checksums import decode_json, encode_json
from jaxdata.format.manifest import Entry
from jaxdata.format.storage import Store

_VERSION = 1
_NAME = re.compile(r"(.+/)?inputs(-[1-9][0-9]*)?\.json")


class InputHashes(Entry):
    """The content of the file.

    Attributes:
        columns: the columns that were read of tables; None for all.
        record_bytes: records that were longer were not read whole.
        piece_bytes: about the size of the pieces of a huge text; `joined`: they are one document.
        arrays: columns whose lists were read as arrays, which are larger than lists seem to be.
        unit_bytes: about the size of the units that files were cut into.
        contents: name of an input -> hash of its records as they were read.
    """

    version: int = _VERSION
    columns: list[str] | None
    record_bytes: Positive
    piece_bytes: Annotated[Positive, Field(ge=16)]
    joined: bool
    arrays: tuple[str, ...] = ()
    unit_bytes: Positive
    contents: dict[str, str]

    def encode(self) -> bytes:
        return encode_json(self)

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """No `arrays` where there are none, as in files that an earlier jaxdata reads."""
        fields: dict[str, Any] = serialize(self)
        return fields if self.arrays else {k: v for k, v in fields.items() if k != "arrays"}


def hashes_name(folder: str, times: int) -> str:
    """The name for a folder to which files were appended so many times."""
    return f"{folder}/inputs-{times}.json" if times else f"{folder}/inputs.json"


def is_hashes_name(name: str) -> bool:
    """Tell whether a file of a dataset is one of these.

    >>> [is_hashes_name(name) for name in ("train/web/inputs-1.json", "train/web/input.json")]
    [True, False]
    """
    return _NAME.fullmatch(name) is not None


def read_hashes(store: Store, name: str) -> InputHashes | None:
    """Read a file of hashes, None if there is none; raises DatasetError if it is damaged."""
    data = store.read(name)
    return (data and decode_json(data, f"{store.url}/{name}", InputHashes, _VERSION)) or None
