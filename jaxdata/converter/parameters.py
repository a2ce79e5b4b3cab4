"""What decides the bytes of a source; written first, so that a resume can compare it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.settings import Settings as Declared
from jaxdata.base.settings import setting
from jaxdata.base.wording import nearest
from jaxdata.converter.filters import Cleaning, LengthFilter
from jaxdata.converter.hashes import KeptHashes
from jaxdata.converter.inputs.files import (
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    InputFile,
    unit_bytes_for,
)
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.formats.tables import list_type
from jaxdata.converter.options import (
    EXECUTION,
    INPUT,
    LIMITS,
    SPLITS,
    Keys,
    Option,
    options_of,
    split_keys,
)
from jaxdata.converter.splits import read_ratio
from jaxdata.converter.tasks.base import Settings, token_dtype
from jaxdata.converter.tasks.registry import (
    TaskSettings,
    check_takes,
    defaults,
    make_settings,
    task_options,
)
from jaxdata.converter.transform import transform_digest, transform_name
from jaxdata.dataset.manifest import (
    MANIFEST,
    MAX_RECORD_TOKENS,
    TokenizerEntry,
    as_type,
    check_side,
)
from jaxdata.dataset.records import RecordSpec
from jaxdata.tokenizers import Tokenizer


def with_types(names: Any, files: Sequence[InputFile], transform: object = None) -> tuple[str, ...]:
    """Complete names to "name:dtype", or "name:dtype:fill" where the fill is not 0.

    The type is as given, else as the first table has it.

    Raises:
        InputError: a name or type cannot be that of a side array, or its type is not known.
    """
    if isinstance(names, str):
        names = split_keys(names)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"keep_per_token={names!r}: expected names, as in 'weight,language:uint8'")
    tables = (file for file in files if reader_of(file.kind).table)
    table = None if transform else next(tables, None)
    found: dict[str, str] = {}
    for given in names:
        name, _, more = given.partition(":")
        dtype, _, fill = more.partition(":")
        if name in found:
            raise InputError(f"--keep-per-token names {name!r} twice")
        check_side(name)
        dtype = _known_type(dtype, given) if dtype else _type_in(table, name)
        check_side(name, dtype)
        found[name] = f"{name}:{dtype}{_fill(fill, dtype, given)}"
    return tuple(found.values())


def _known_type(dtype: str, given: str) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise InputError(
            f"--keep-per-token {given}: {dtype!r} is no type; expected one as in weight:float32, "
            "language:uint8"
        ) from None


def _type_in(table: InputFile | None, name: str) -> str:
    if table is None:
        raise InputError(
            f"--keep-per-token {name}: lines of JSON, and records of a transform, do not say of "
            f"which type numbers are; give it, as in --keep-per-token {name}:float32"
        )
    return list_type(table, name)


def _fill(fill: str, dtype: str, given: str) -> str:
    """What follows the type."""
    try:
        value = as_type(np.array(float(fill or 0)), np.dtype(dtype))
    except ValueError:
        value = None
    if value is None:
        raise InputError(f"--keep-per-token {given}: the fill {fill!r} is no number of {dtype}")
    return f":{value.item()}" if value else ""


_OF_DATASET = {"record_tokens", "tokenizer", "first_file", "inputs"}
_ALWAYS = {"text_key", "bos", "unit_bytes"}  # written even where they are the default


class Parameters(Declared):
    """Everything that decides what a conversion writes; not the number of workers."""

    task: TaskSettings
    record_tokens: int = setting(
        16_384, "Store longer documents in several records.", heading=SPLITS, ge=1
    )
    unit_bytes: int = setting(
        UNIT_BYTES,
        "Bytes of text in a unit of work, about.",
        ge=1,
        heading=EXECUTION,
        shown="4 to 64 MiB, by the size of the corpus",
    )
    cleaning: Cleaning = Cleaning()
    limits: LengthFilter = LengthFilter()
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
        (),
        "Keys whose values the index keeps (url,lang).",
        heading=INPUT,
        metavar="KEYS",
    )
    split_ratio: str | None = setting(
        None,
        "Several splits, by a hash of each document.",
        heading=SPLITS,
        metavar="A=98,B=2",
    )
    split_by: str | None = setting(
        None,
        "Assign by a hash of this key's value: all documents with the same url go to one split.",
        heading=SPLITS,
        metavar="KEY",
    )
    split_contiguous: bool = setting(
        False,
        "Assign by position, as Megatron does: the first 98 % of the documents, and so on.",
        heading=SPLITS,
    )
    max_record_bytes: int = setting(
        RECORD_BYTES,
        "Quarantine lines, text files and values of more bytes than this.",
        heading=LIMITS,
        ge=1,
    )
    piece_bytes: int = setting(
        PIECE_BYTES,
        "Read a text file of more than 16 times this many bytes in pieces of about this size. In "
        "task lm without a transform they are one document, cut between words: only the last ends "
        "with EOD, and their tokens together are those of the text, if the tokenizer can be cut "
        "there. Otherwise each piece is a document, cut at a line end.",
        heading=EXECUTION,
        ge=16,
    )
    hashes: KeptHashes = KeptHashes()
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
        fields |= fields.pop("cleaning") | fields.pop("limits") | fields.pop("hashes")
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
        """Raise InputError if some of them cannot be combined."""
        if not 1 <= self.record_tokens <= MAX_RECORD_TOKENS:
            raise InputError(
                f"record_tokens={self.record_tokens}; expected 1 to {MAX_RECORD_TOKENS:,}"
            )
        for name in self.splits(split):
            check_name("split", name)
        if self.split_ratio and split != "train":
            raise InputError(f"--split {split!r} cannot be combined with --split-ratio: give one")
        if not self.split_ratio and (self.split_by or self.split_contiguous):
            raise InputError("--split-by and --split-contiguous require --split-ratio")
        if self.split_by and self.split_contiguous:
            raise InputError("--split-by cannot be combined with --split-contiguous: give one")
        if not self.task.has_texts and (given := self._for_texts()):
            raise InputError(
                f"task {self.task.name!r} reads no text: {', '.join(given)} cannot be done to it; "
                "--min-tokens and --max-tokens limit the length"
            )
        if not self.task.has_texts and self.hashes.hashing:
            raise InputError(
                f"task {self.task.name!r} reads no text that --minhash and --dedup could hash: "
                "convert without them; then jaxdata dedup --of ids finds copies by their ids"
            )
        if self.task.bos and self.tokenizer.bos_id is None:
            raise InputError(
                f"tokenizer {self.tokenizer.name!r} has no begin-of-sequence token that jaxdata "
                "recognizes; name it with --bos-token, or convert without --bos"
            )

    def _for_texts(self) -> list[str]:
        """The options given that need texts."""
        changed = self.cleaning.model_dump(exclude_defaults=True)
        limits = self.limits.model_dump(exclude_defaults=True)
        changed |= {name: value for name, value in limits.items() if name.endswith("_chars")}
        return [f"--{name.replace('_', '-')}" for name in changed]


def default_of(name: str, task: str) -> Any:
    """What a parameter that :meth:`Parameters.own` leaves out was, in some task."""
    if name == "task":
        return "lm"
    models = (Parameters, Cleaning, LengthFilter, KeptHashes)
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    if name not in fields:
        return defaults(task).get(name)
    default = fields[name].get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default


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


Model = TypeVar("Model", bound=Declared)


def options() -> dict[str, Option]:
    """Every option of a conversion, by name: those of its models and of every task.

    Keyword arguments of `convert` and `stream_text`, options of `jaxdata convert`.
    """
    return task_options() | options_of({"": [Parameters, Cleaning, LengthFilter]})


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
    files: list[InputFile], tokenizer: Tokenizer, chosen: Mapping[str, Any]
) -> Parameters:
    """Gather the parameters of a conversion."""
    given = dict(chosen)
    transform = given.pop("transform", None)
    task = given.pop("task", "lm")
    own = {name: given.pop(name) for name in task_options() if name in given}
    if own.get("keep_per_token"):
        if isinstance(task, str):
            check_takes(task, "keep_per_token", _NO_LISTS)
        own["keep_per_token"] = with_types(own["keep_per_token"], files, transform)
    known = {
        "task": make_settings(task, tokenizer, own) if isinstance(task, str) else task,
        "cleaning": _taken(Cleaning, given),
        "limits": _taken(LengthFilter, given),
        "transform": transform_name(transform),
        "transform_digest": transform_digest(transform),
        "tokenizer": _tokenizer_entry(tokenizer),
        "unit_bytes": unit_bytes_for(sum(file.text_bytes for file in files)),
        "inputs": {file.name: file.digest for file in files},
    }
    if unknown := given.keys() - options().keys():
        name = sorted(unknown)[0]
        raise TypeError(f"convert() has no argument {name!r}{nearest(name, options())}")
    return Parameters.checked(**known | given)


def _taken(model: type[Model], given: dict[str, Any]) -> Model:
    """Take what a model wants out of what is given."""
    return model.checked(**{name: given.pop(name) for name in model.model_fields if name in given})


def check_name(role: str, name: str) -> None:
    """Raise InputError unless a name can be a folder (or, with "/", several) of a dataset."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*", name):
        raise InputError(
            f"--{role} {name!r} is not a valid folder name; "
            "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    if role == "split" and "/" in name:
        raise InputError(f"--split {name!r} has a '/'; only the names of sources may")
    if {MANIFEST, "tokenizer", "index", "work"} & set(name.split("/")):
        raise InputError(f"--{role} {name!r} is a name reserved by datasets")
