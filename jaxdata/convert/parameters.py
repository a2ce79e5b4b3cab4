"""What decides the bytes of a source, written before any of them, so that a resume can compare."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jaxdata.convert.inputs import InputFile
from jaxdata.errors import InputError
from jaxdata.format.manifest import Manifest, TokenizerEntry
from jaxdata.format.records import RecordLayout
from jaxdata.tokenizers import Tokenizer

__all__ = [
    "Parameters",
    "check_dataset",
    "check_finished",
    "check_name",
    "check_unfinished",
    "make_parameters",
]


_OF_SOURCE = ("text_key", "bos", "unit_bytes")


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
        own = self.model_dump(include=set(_OF_SOURCE))
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


def check_name(role: str, name: str) -> None:
    """Raise InputError unless a name can be a folder (or, with "/", several) of a dataset."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*", name):
        raise InputError(
            f"--{role} {name!r} cannot be a folder of a dataset; "
            "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    if role == "split" and "/" in name:
        raise InputError(f"--split {name!r} has a '/'; only the names of sources may")
    if {"tokenizer", "index", "work"} & set(name.split("/")):
        raise InputError(f"--{role} {name!r} is a name that datasets keep for themselves")


def check_dataset(manifest: Manifest, wanted: Parameters, url: str) -> None:
    """Raise InputError unless a source made with `wanted` can join the dataset."""
    changes = _tokenizer_changes(manifest.tokenizer, wanted.tokenizer)
    if manifest.record_tokens != wanted.record_tokens:
        changes.append(_change("record_tokens", manifest.record_tokens, wanted.record_tokens))
    if changes:
        raise InputError(
            f"{url}: all sources of a dataset share one tokenizer and record size: "
            f"{'; '.join(changes)}. Use the dataset's, or another --output"
        )


def check_finished(manifest: Manifest, source: str, wanted: Parameters, url: str) -> None:
    """Raise InputError if a finished source was made from other inputs or parameters."""
    entry = manifest.sources[source]
    was, now = dict(entry.parameters), wanted.of_source()
    digests = dict(zip(entry.inputs, was["input_digests"], strict=True))
    changes = [
        *(_change(key, was[key], now[key]) for key in _OF_SOURCE if was[key] != now[key]),
        *_input_changes(digests, wanted.inputs),
    ]
    if changes:
        raise InputError(
            f"{url} already has {source}, made otherwise: {'; '.join(changes)}. "
            "Use another --source or --output"
        )


def check_unfinished(begun: bytes, wanted: Parameters, url: str) -> None:
    """Raise InputError if the unfinished conversion in `url` was asked for something else."""
    try:
        was = Parameters.model_validate_json(begun)
    except ValueError as error:
        raise InputError(
            f"{url} holds an unfinished conversion of another version of jaxdata; "
            "delete that folder to begin anew"
        ) from error
    changes = [
        *(
            _change(key, getattr(was, key), getattr(wanted, key))
            for key in (*_OF_SOURCE, "record_tokens")
            if getattr(was, key) != getattr(wanted, key)
        ),
        *_tokenizer_changes(was.tokenizer, wanted.tokenizer),
        *_input_changes(was.inputs, wanted.inputs),
    ]
    if changes:
        raise InputError(
            f"{url} holds an unfinished conversion of another kind: {'; '.join(changes)}. "
            "Give the same again to finish it, or delete that folder to begin anew"
        )


def _tokenizer_changes(was: TokenizerEntry, now: TokenizerEntry) -> list[str]:
    changes = [
        _change(f"tokenizer {key}", getattr(was, key), getattr(now, key))
        for key in ("kind", "vocab_size", "eod_id", "bos_id", "pad_id")
        if getattr(was, key) != getattr(now, key)
    ]
    if was.files != now.files and not changes:
        changes = [f"tokenizer was {was.name!r}, is {now.name!r} with other content"]
    return changes


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name what differs between two sets of inputs, the first of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"


def _change(name: str, was: Any, now: Any) -> str:
    return f"{name} was {was!r}, is {now!r}"
