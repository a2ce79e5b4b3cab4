"""What trials found, kept in the user's cache: by tokenizer, encoder and library."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from contextlib import suppress

from pydantic import BaseModel, ConfigDict

from jaxdata.format.cache import find_kept, keep
from jaxdata.format.storage import Store
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.library_tables import library_of

_TRIAL = 2
"""Counts up when trials change, so that what an earlier one found is not taken."""


class Verdict(BaseModel):
    """What a trial found.

    Attributes:
        refused: why the encoder may not be used; None where it may.
        left: ranges of code points that are left to the library, both ends included.
        differing: those of them that the encoder does otherwise than the library.
        ratio: how many times as fast as the library it was on what is hard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    refused: str | None = None
    left: list[tuple[int, int]] = []
    differing: list[int] = []
    ratio: float = 0.0


def kept_verdict(tokenizer: Tokenizer, encoder: str) -> Verdict | None:
    """The verdict on an encoder ("tiktoken 0.14.0") for a tokenizer; None before its trial."""
    for store, name in find_kept([_name(tokenizer, encoder)], None):
        with suppress(ValueError):
            if data := store.read(name):
                return Verdict.model_validate_json(data)
    return None


def keep_verdict(tokenizer: Tokenizer, encoder: str, verdict: Verdict) -> None:
    """Keep a verdict, where the cache can be written."""
    data = verdict.model_dump_json(indent=1).encode() + b"\n"

    def write(store: Store, name: str) -> None:
        store.write(name, data)

    with suppress(OSError, ValueError):
        keep(_name(tokenizer, encoder), None, write)


def _name(tokenizer: Tokenizer, encoder: str) -> str:
    content = hashlib.sha256("\n".join(_facts(tokenizer, encoder)).encode()).hexdigest()
    return f"encoders/{content[:32]}.json"


def _facts(tokenizer: Tokenizer, encoder: str) -> Iterator[str]:
    """Whatever a verdict depends on."""
    yield from (f"trial {_TRIAL}", encoder, str(library_of(tokenizer.kind)))
    yield f"Python's Unicode {unicodedata.unidata_version}"
    for name, data in sorted(tokenizer.files().items()):
        yield f"{name} {hashlib.sha256(data).hexdigest()}"
