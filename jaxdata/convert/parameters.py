"""What decides the bytes of a source, written before any of them, so that a resume can compare."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.parts import RECORD_BYTES
from jaxdata.convert.tasks import LmSettings, Settings, TaskSettings, token_dtype
from jaxdata.errors import InputError
from jaxdata.format.manifest import TokenizerEntry
from jaxdata.format.records import RecordLayout
from jaxdata.tokenizers import Tokenizer

__all__ = ["Parameters", "default_of", "digests", "tokenizer_entry"]

_OF_DATASET = {"record_tokens", "tokenizer", "inputs"}
_ALWAYS = {"text_key", "bos", "unit_bytes"}  # written even where they are the default


class Parameters(BaseModel):
    """Everything that decides what a conversion writes; the number of workers is not in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: TaskSettings
    record_tokens: int
    unit_bytes: int
    max_record_bytes: int = RECORD_BYTES
    """Longer lines, files and values are set aside."""
    tokenizer: TokenizerEntry
    inputs: dict[str, str]
    """Name of each input file -> digest of its size, head and tail."""

    @property
    def dtype(self) -> Literal["uint16", "uint32"]:
        """Type of a stored token."""
        return token_dtype(self.tokenizer.vocab_size)

    @property
    def text_key(self) -> str:
        """The field that a text file's text is."""
        return getattr(self.task, "text_key", "text")

    def layout(self, masked: bool) -> RecordLayout:
        """How documents are cut into records."""
        return RecordLayout(self.dtype, masked=masked, record_tokens=self.record_tokens)

    def own(self) -> dict[str, Any]:
        """Return, by name, what the sources of one dataset need not share; no defaults."""
        fields = self.model_dump(mode="json", exclude=_OF_DATASET)
        task = fields.pop("task")
        fields |= {"task": task.pop("name")} | task
        return {
            name: value
            for name, value in fields.items()
            if name in _ALWAYS or value != default_of(name)
        }

    def of_source(self) -> dict[str, Any]:
        """Return what the manifest keeps with the source; the dataset has the rest."""
        return self.own() | {"input_digests": list(self.inputs.values())}

    def encode(self) -> bytes:
        """Return the bytes of work/parameters.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def check(self) -> None:
        """Raise InputError where the tokenizer cannot do what is asked."""
        if self.task.bos and self.tokenizer.bos_id is None:
            raise InputError(
                f"tokenizer {self.tokenizer.name!r} has no begin-of-sequence token that jaxdata "
                "knows; name it with --bos-token, or convert without --bos"
            )


def default_of(name: str) -> Any:
    """What a parameter that :meth:`Parameters.own` leaves out was."""
    if name == "task":
        return "lm"
    models: list[type[BaseModel]] = [Parameters, LmSettings, *Settings.__subclasses__()]
    found = [model.model_fields[name] for model in models if name in model.model_fields]
    return found[0].default if found else None


def digests(files: list[InputFile]) -> dict[str, str]:
    """Name of each input file -> its digest; reads the head and tail of every one."""
    return {file.name: file.digest() for file in files}


def tokenizer_entry(tokenizer: Tokenizer) -> TokenizerEntry:
    """What a dataset says of a tokenizer."""
    return TokenizerEntry(
        kind=tokenizer.kind,
        name=tokenizer.name,
        files={name: hashlib.sha256(data).hexdigest() for name, data in tokenizer.files().items()},
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        bos_id=tokenizer.bos_id,
        pad_id=tokenizer.pad_id,
    )
