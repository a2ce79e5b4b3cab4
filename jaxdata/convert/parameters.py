"""What decides the bytes of a source, written before any of them, so that a resume can compare."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jaxdata.convert.inputs import InputFile
from jaxdata.errors import InputError
from jaxdata.format.manifest import TokenizerEntry
from jaxdata.format.records import RecordLayout
from jaxdata.tokenizers import Tokenizer

__all__ = ["OF_SOURCE", "Parameters", "make_parameters"]


OF_SOURCE = ("text_key", "bos", "unit_bytes")
"""The parameters that the sources of one dataset need not share."""


class Parameters(BaseModel):
    """Everything that decides what a conversion writes; the number of workers is not in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_key: str
    bos: bool
    record_tokens: int
    unit_bytes: int
    tokenizer: TokenizerEntry
    inputs: dict[str, str]
    """Name of each input file -> digest of its size, head and tail."""

    @property
    def dtype(self) -> Literal["uint16", "uint32"]:
        """Type of a stored token."""
        return "uint16" if self.tokenizer.vocab_size <= 2**16 else "uint32"

    @property
    def layout(self) -> RecordLayout:
        """How documents are cut into records."""
        return RecordLayout(self.dtype, masked=False, record_tokens=self.record_tokens)

    def of_source(self) -> dict[str, Any]:
        """Return what the manifest keeps with the source; the dataset has the rest."""
        own = self.model_dump(include=set(OF_SOURCE))
        return own | {"input_digests": list(self.inputs.values())}

    def encode(self) -> bytes:
        """Return the bytes of work/parameters.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def make_parameters(
    files: list[InputFile],
    tokenizer: Tokenizer,
    text_key: str,
    bos: bool,
    record_tokens: int,
    unit_bytes: int,
) -> Parameters:
    """Gather the parameters of a conversion; reads the head and tail of every input."""
    if bos and tokenizer.bos_id is None:
        raise InputError(
            f"tokenizer {tokenizer.name!r} has no begin-of-sequence token that jaxdata knows; "
            "name it with --bos-token, or convert without --bos"
        )
    return Parameters(
        text_key=text_key,
        bos=bos,
        record_tokens=record_tokens,
        unit_bytes=unit_bytes,
        tokenizer=_tokenizer_entry(tokenizer),
        inputs={file.name: file.digest() for file in files},
    )


def _tokenizer_entry(tokenizer: Tokenizer) -> TokenizerEntry:
    return TokenizerEntry(
        kind=tokenizer.kind,
        name=tokenizer.name,
        files={name: hashlib.sha256(data).hexdigest() for name, data in tokenizer.files().items()},
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        bos_id=tokenizer.bos_id,
        pad_id=tokenizer.pad_id,
    )
