"""Kept in the user's cache: what trials of encoders found, and which datasets they encoded."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
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
    """The verdict on an encoder ("fastokens 0.3.5") for a tokenizer; None before its trial."""
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


class EncodedDataset(BaseModel):
    """What an encoder encoded of a dataset, by a conversion on this machine.

    Attributes:
        dataset: its folder or URL.
        made: the sources, and the fingerprint of the generation of each.
        command: what was run.
        folder: where it was run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    made: dict[str, str]
    command: str
    folder: str


def note_encoded(tokenizer: Tokenizer, encoder: str, what: EncodedDataset) -> None:
    """Remember what an encoder encoded, where the cache can be written."""
    line = what.model_dump_json().encode() + b"\n"

    def write(store: Store, name: str) -> None:
        store.update(name, lambda before: (before or b"").replace(line, b"") + line)

    with suppress(OSError, ValueError):
        keep(_list_name(tokenizer, encoder), None, write)


def encoded_by(tokenizer: Tokenizer, encoder: str) -> Iterator[EncodedDataset]:
    """What an encoder encoded with a tokenizer, as far as this cache knows."""
    for store, name in find_kept([_list_name(tokenizer, encoder)], None):
        for line in (store.read(name) or b"").splitlines():
            with suppress(ValueError):
                yield EncodedDataset.model_validate_json(line)


def _name(tokenizer: Tokenizer, encoder: str) -> str:
    return f"encoders/{_digest(_facts(tokenizer, encoder))}.json"


def _list_name(tokenizer: Tokenizer, encoder: str) -> str:
    """Of datasets: ids that are wrong are wrong whatever version of the library was there."""
    return f"encoders/{_digest((encoder, *_files(tokenizer)))}.datasets.jsonl"


def _digest(facts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _facts(tokenizer: Tokenizer, encoder: str) -> Iterator[str]:
    """Whatever a verdict depends on."""
    yield from (f"trial {_TRIAL}", encoder, str(library_of(tokenizer.kind)))
    yield f"Python's Unicode {unicodedata.unidata_version}"
    yield from _files(tokenizer)


def _files(tokenizer: Tokenizer) -> Iterator[str]:
    for name, data in sorted(tokenizer.files().items()):
        yield f"{name} {hashlib.sha256(data).hexdigest()}"
