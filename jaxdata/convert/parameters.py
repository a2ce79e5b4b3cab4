"""What decides the bytes of a source, written before any of them, so that a resume can compare."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jaxdata.convert.clean import Cleaning
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.limits import Limits
from jaxdata.convert.names import check_name
from jaxdata.convert.parts import PIECE_BYTES, RECORD_BYTES, UNIT_BYTES
from jaxdata.convert.split_ratio import read_ratio
from jaxdata.convert.tasks import TaskSettings, defaults, token_dtype
from jaxdata.errors import InputError
from jaxdata.format.manifest import TokenizerEntry
from jaxdata.format.records import RecordLayout
from jaxdata.tokenizers import Tokenizer

__all__ = ["Parameters", "default_of", "digests", "tokenizer_entry"]

_OF_DATASET = {"record_tokens", "tokenizer", "first_file", "inputs"}
_ALWAYS = {"text_key", "bos", "unit_bytes"}  # written even where they are the default


class Parameters(BaseModel):
    """Everything that decides what a conversion writes; the number of workers is not in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: TaskSettings
    record_tokens: int = 16_384
    unit_bytes: int = UNIT_BYTES
    cleaning: Cleaning = Cleaning()
    limits: Limits = Limits()
    transform: str | None = None
    """The user's function, "module:function"."""
    transform_digest: str | None = None
    """16 hex digits over the file that holds it."""
    keep: tuple[str, ...] = ()
    """Fields that are kept in the index."""
    split_ratio: str | None = None
    split_by: str | None = None
    """The field whose value decides the split; None for the document itself."""
    split_contiguous: bool = False
    max_record_bytes: int = RECORD_BYTES
    """Longer lines, files and values are set aside."""
    piece_bytes: int = Field(PIECE_BYTES, ge=16)
    """A text of more than 16 times as many is read in pieces of about so many."""
    tokenizer: TokenizerEntry
    first_file: int = 0
    """The number of the first input, where documents are added to a source."""
    inputs: dict[str, str]
    """Name of each input file -> digest of its size, head and tail."""

    @property
    def dtype(self) -> Literal["uint16", "uint32"]:
        """Type of a stored token."""
        return token_dtype(self.tokenizer.vocab_size)

    @property
    def text_key(self) -> str:
        """The field that a text file's text is."""
        keys: tuple[str, ...] = getattr(self.task, "text_keys", ("text",))
        return keys[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that are read besides the task's."""
        return (*self.keep, *([self.split_by] if self.split_by else []))

    def splits(self, otherwise: str) -> list[str]:
        """The splits that documents are dealt to."""
        return list(read_ratio(self.split_ratio)) if self.split_ratio else [otherwise]

    def layout(self, masked: bool) -> RecordLayout:
        """How documents are cut into records."""
        return RecordLayout(self.dtype, masked=masked, record_tokens=self.record_tokens)

    def own(self) -> dict[str, Any]:
        """Return, by name, what the sources of one dataset need not share; no defaults."""
        fields = self.model_dump(mode="json", exclude=_OF_DATASET)
        task = fields.pop("task")
        fields |= fields.pop("cleaning") | fields.pop("limits")
        fields |= {"task": task.pop("name")} | task
        return {
            name: value
            for name, value in fields.items()
            if name in _ALWAYS or value != default_of(name, self.task.name)
        }

    def of_source(self) -> dict[str, Any]:
        """Return what the manifest keeps with the source; the dataset has the rest."""
        return self.own() | {"input_digests": list(self.inputs.values())}

    def encode(self) -> bytes:
        """Return the bytes of work/parameters.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def check(self, split: str) -> None:
        """Raise InputError where one does not go with another, or with the split that is named."""
        if self.record_tokens < 1:
            raise InputError(f"record_tokens={self.record_tokens}; expected 1 or more")
        for name in self.splits(split):
            check_name("split", name)
        if self.split_ratio and split != "train":
            raise InputError(f"--split {split!r} and --split-ratio are two answers: give one")
        if not self.split_ratio and (self.split_by or self.split_contiguous):
            raise InputError("--split-by and --split-contiguous go with --split-ratio: give it too")
        if self.split_by and self.split_contiguous:
            raise InputError("--split-by deals by a key, --split-contiguous by position: give one")
        if self.task.bos and self.tokenizer.bos_id is None:
            raise InputError(
                f"tokenizer {self.tokenizer.name!r} has no begin-of-sequence token that jaxdata "
                "knows; name it with --bos-token, or convert without --bos"
            )


def default_of(name: str, task: str) -> Any:
    """What a parameter that :meth:`Parameters.own` leaves out was, in some task."""
    if name == "task":
        return "lm"
    models: list[type[BaseModel]] = [Parameters, Cleaning, Limits]
    found = [model.model_fields[name] for model in models if name in model.model_fields]
    if not found:
        return defaults(task).get(name)
    default = found[0].get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default


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
