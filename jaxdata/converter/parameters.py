"""What decides the bytes of a source; written first, so that a resume can compare it."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np
from pydantic import Field

from jaxdata.base.errors import InputError, nearest
from jaxdata.base.hashing import ExactRule
from jaxdata.base.settings import setting
from jaxdata.converter import tasks
from jaxdata.converter.filters import Cleaning, LengthFilter
from jaxdata.converter.hashes import HASHING, MINHASH, RULE
from jaxdata.converter.inputs.files import (
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    InputFile,
    unit_bytes_for,
)
from jaxdata.converter.inputs.formats.tables import list_type
from jaxdata.converter.inputs.reading import reader_of
from jaxdata.converter.options import INPUT, SPLITS, Keys, Option, options_of, split_keys
from jaxdata.converter.splits import read_ratio
from jaxdata.converter.tasks import Settings, token_dtype
from jaxdata.converter.transform import transform_digest, transform_name
from jaxdata.dataset.manifest import MANIFEST, MAX_RECORD_TOKENS, TokenizerEntry, check_side
from jaxdata.dataset.records import RecordSpec
from jaxdata.tokenizers import Tokenizer


def with_types(names: Any, files: Sequence[InputFile], transform: str | None) -> tuple[str, ...]:
    """Complete names to "name:dtype": the type that is given, else that of the first table.

    Raises:
        InputError: a name or type cannot be that of a side array, or its type is not known.
    """
    names = split_keys(names)
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"keep_per_token={names!r}: expected names, as in 'weight,language:uint8'")
    table = next((file for file in files if reader_of(file.kind).table and not transform), None)
    found: dict[str, str] = {}
    for given in names:
        name, _, dtype = given.partition(":")
        if name in found:
            raise InputError(f"keep_per_token names {name!r} twice")
        check_side(name)
        dtype = list_type(table, name) if table and not dtype else dtype
        try:
            found[name] = f"{name}:{np.dtype(dtype).name}"
        except TypeError:
            raise InputError(
                f"keep_per_token {given}: expected {name}:TYPE, as in {name}:float32 (lines of "
                "JSON, and records of a transform, do not say of which type numbers are)"
            ) from None
        check_side(name, np.dtype(dtype))
    return tuple(found.values())


_OF_DATASET = {"record_tokens", "tokenizer", "first_file", "inputs"}
_ALWAYS = {"text_key", "bos", "unit_bytes"}  # written even where they are the default
_SIZES = {"unit_bytes", "piece_bytes", "max_record_bytes"}
"""No options: what they are is right for every corpus, but for those of tests."""
_OF_TEXTS = {name: name for name in (*Cleaning.model_fields, "min_chars", "max_chars")}
_OF_TEXTS["hashing"] = "--dedup or --minhash"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_RESERVED = (MANIFEST, "tokenizer", "index", "work")


class Parameters(Cleaning, LengthFilter):
    """Everything that decides what a conversion writes; not the number of workers."""

    task: tasks.TaskSettings
    record_tokens: int = setting(
        16_384,
        "Store longer documents in several records.",
        heading=SPLITS,
        ge=1,
        le=MAX_RECORD_TOKENS,
    )
    unit_bytes: Annotated[int, Field(ge=1)] = UNIT_BYTES
    """Bytes of text in a unit of work, about: 4 to 64 MiB, by the size of the corpus."""
    piece_bytes: Annotated[int, Field(ge=16)] = PIECE_BYTES
    """Bytes of a piece of a text file, about; one of more than 16 times as many is read in pieces.

    Each is a document, cut after an empty line or at a line end.
    """
    max_record_bytes: Annotated[int, Field(ge=1)] = RECORD_BYTES
    """Lines, text files and values of more bytes than this are quarantined."""
    transform: str | None = setting(
        None,
        "Function that is given each record as a dict, and returns a record, a list of records, or "
        "None to drop it. The module may be in the working directory.",
        heading=INPUT,
        metavar="MODULE:FUNCTION",
    )
    transform_digest: str | None = None
    """16 hex digits over the file that holds it."""
    keep: Keys = setting(
        (), "Keys whose values the index keeps (url,lang).", heading=INPUT, metavar="KEYS"
    )
    split_ratio: str | None = setting(
        None, "Several splits, by a hash of each document.", heading=SPLITS, metavar="A=98,B=2"
    )
    split_by: str | None = setting(
        None,
        "Assign by a hash of this key's value: all documents with the same url go to one split.",
        heading=SPLITS,
        metavar="KEY",
    )
    exact_hash: ExactRule | None = None
    """The rule of the 128-bit hashes of whole texts; None where none are kept."""
    minhash: str | None = None
    """The settings of the band hashes; None where none are kept."""
    hashing: str | None = None
    """What makes hashes; None where none are kept."""
    tokenizer: TokenizerEntry
    library: str | None = None
    """The library that decides the ids, with its version; None for our own."""
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
        return self.task.text_keys[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that are read in addition to the task's."""
        return (*self.keep, *([self.split_by] if self.split_by else []))

    def splits(self, otherwise: str) -> list[str]:
        """The splits that documents are assigned to."""
        return list(read_ratio(self.split_ratio)) if self.split_ratio else [otherwise]

    def record_spec(self, masked: bool) -> RecordSpec:
        """How documents are cut into records."""
        return RecordSpec(self.dtype, masked=masked, record_tokens=self.record_tokens)

    def own(self) -> dict[str, Any]:
        """Return, by name, what the sources of one dataset need not share; no defaults."""
        fields = self.model_dump(mode="json", exclude=_OF_DATASET)
        task = fields.pop("task")
        fields |= {"task": task.pop("name")} | task
        usual = defaults_of(self.task.name)
        changed = (name for name in fields if name not in usual or fields[name] != usual[name])
        return {name: fields[name] for name in {*changed, *(_ALWAYS & fields.keys())}}

    def of_source(self) -> dict[str, Any]:
        """Return what the manifest keeps with the source; the dataset has the rest."""
        return self.own() | {"input_digests": list(self.inputs.values())}

    def encode(self) -> bytes:
        """Return the bytes of work/parameters.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def check(self, split: str) -> None:
        """Raise InputError if some of them cannot be combined."""
        for name in self.splits(split):
            check_name("split", name)
        if self.split_ratio and split != "train":
            raise InputError(f"--split {split!r} cannot be combined with --split-ratio: give one")
        if self.split_by and not self.split_ratio:
            raise InputError("split_by requires --split-ratio")
        if not self.task.has_texts and (given := self.own().keys() & _OF_TEXTS.keys()):
            raise InputError(
                f"task {self.task.name!r} reads no text: "
                f"{', '.join(sorted(_OF_TEXTS[name] for name in given))} cannot be done to it; "
                "min_tokens and max_tokens limit the length, and jaxdata dedup --set of=ids finds "
                "copies by their ids"
            )
        if self.task.bos and self.tokenizer.bos_id is None:
            raise InputError(
                f"tokenizer {self.tokenizer.name!r} has no begin-of-sequence token that jaxdata "
                "recognizes; name it with --set bos_token=TOKEN, or convert without --bos"
            )


def defaults_of(task: str) -> dict[str, Any]:
    """What parameters are that :meth:`Parameters.own` leaves out, in some task."""
    return tasks.defaults(task, Parameters) | {"task": "lm"}


def options() -> dict[str, Option]:
    """Every option of a conversion, by name: those of its models and of every task.

    Keyword arguments of `convert` and `stream_text`, options of `jaxdata convert`.
    """
    return tasks.task_options() | options_of({"": [Parameters]})


if TYPE_CHECKING:
    Options = dict[str, Any]
else:
    Options = TypedDict(
        "Options",
        {"task": str | Settings, **{name: one.field.annotation for name, one in options().items()}},
        total=False,
    )
    Options.__doc__ = "\n".join(
        ["Keyword arguments of `convert`; all of them can be left out.", ""]
        + ["Attributes:", "    task: what records become; see `task_names`."]
        + [f"    {name}: {one.help}" for name, one in options().items()]
    )


_NO_LISTS = "which values belong to which token is known only where lists of ids are converted"


def make_parameters(
    files: Sequence[InputFile], tokenizer: Tokenizer, chosen: Mapping[str, Any]
) -> Parameters:
    """Gather the parameters of a conversion.

    Besides :func:`options` and the task, `chosen` may have the rule `exact_hash`, and `minhash`,
    whether band hashes are kept.
    """
    given = dict(chosen)
    task, transform = given.pop("task", "lm"), transform_name(given.pop("transform", None))
    exact, minhash = given.pop("exact_hash", None), given.pop("minhash", False)
    if not isinstance(minhash, bool):
        raise InputError(f"minhash={minhash!r}: expected True or False")
    if unknown := given.keys() - options().keys() - _SIZES:
        name = sorted(unknown)[0]
        raise TypeError(f"convert() has no argument {name!r}{nearest(name, options())}")
    own = {name: given.pop(name) for name in tasks.task_options() if name in given}
    if own.get("keep_per_token"):
        if isinstance(task, str):
            tasks.check_takes(task, "keep_per_token", _NO_LISTS)
        own["keep_per_token"] = with_types(own["keep_per_token"], files, transform)
    if exact is not None or minhash:
        kept = MINHASH if minhash else None
        given |= {"exact_hash": exact or RULE, "minhash": kept, "hashing": HASHING}
    known = {
        "task": tasks.make_settings(task, tokenizer, own) if isinstance(task, str) else task,
        "transform": transform,
        "transform_digest": transform_digest(transform),
        "tokenizer": TokenizerEntry(
            kind=tokenizer.kind,
            name=tokenizer.name,
            files=tokenizer.checksums,
            vocab_size=tokenizer.vocab_size,
            eod_id=tokenizer.eod_id,
            bos_id=tokenizer.bos_id,
            pad_id=tokenizer.pad_id,
        ),
        "unit_bytes": unit_bytes_for(sum(file.text_bytes for file in files)),
        "inputs": {file.name: file.digest for file in files},
    }
    return Parameters.checked(**known | given)


def check_name(role: str, name: str) -> None:
    """Raise InputError unless a name can be a folder (or, with "/", several) of a dataset."""
    parts = name.split("/")
    fit = all(re.fullmatch(_NAME, part) and part not in _RESERVED for part in parts)
    if not fit or (role == "split" and len(parts) > 1):
        raise InputError(
            f"--{role} {name!r} is no name for a folder of a dataset: expected letters, digits, "
            "'.', '_' and '-', beginning with a letter or digit (of sources also '/' between "
            f"folders), and none of {', '.join(_RESERVED)}"
        )
