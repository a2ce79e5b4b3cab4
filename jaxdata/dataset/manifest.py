"""`dataset.json`, the manifest: everything a reader must know before it reads.

Whoever wrote it, names stay below its folder and numbers in bounds. Files carry what shows damage,
their own sha256, and here is what is said where it differs: of bytes it is at their end, of JSON
under the key `sha256`: of its values, not of how they are written.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxdata.base.errors import DatasetError, InputError, digest, on_one_line, shortened
from jaxdata.dataset.records import MAX_RECORD_TOKENS as MAX_RECORD_TOKENS, RecordSpec
from jaxdata.storage import Store
from jaxdata.storage.cached_files import MANIFEST as MANIFEST
from jaxdata.storage.contract import is_url
from jaxdata.storage.remote import RemoteStore

_MAX_COUNT = 2**53  # the largest that every reader of JSON takes as it is
_MAX_ID = 2**32 - 1
_MAX_DEPTH = 32

# A part of a name: any but "", "." and "..".
_PART = r"(?:\.?[^./\x00][^/\x00]*|\.\.[^/\x00]+)"


def _name(pattern: str) -> Any:
    return Field(pattern=f"^{pattern}$", max_length=1024)


FileName = Annotated[str, _name(f"{_PART}(?:/{_PART})*")]
"""A file below the folder of a dataset."""
SourceName = Annotated[str, _name(f"{_PART}(?:/{_PART})+")]
"""`"<split>/<source>"`"""
FolderName = Annotated[str, _name(_PART)]
"""A folder directly below another."""
Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
TokenId = Annotated[int, Field(ge=-1, le=_MAX_ID)]
"""-1 for none"""
RecordTokens = Annotated[int, Field(ge=1, le=MAX_RECORD_TOKENS)]


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _shallow(facts: dict[str, Any]) -> dict[str, Any]:
    """Refuse values nested so deep that code which walks them would fail."""
    if _depth(facts) > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    return facts


Facts = Annotated[dict[str, Any], pydantic.AfterValidator(_shallow)]
"""JSON values by name that nothing is opened by."""


TARGET = "target_"
"""Before the name of a side array: its values of the targets, not of the inputs."""

SideName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
SideType = Literal[
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
"""The type of a value."""

_TAKEN = {
    "tokens", "loss_mask", "inputs", "targets", "segment_ids", "positions", "source", "document",
    "mask", "slots", "context", "ended", "text", "input_ids", "labels", "shift_labels", "use_cache",
    "position_ids", "attention_mask", "completion_mask", "cu_seqlens", "max_seqlen",
    "cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "inputs_position",
    "targets_position", "inputs_segmentation", "targets_segmentation",
}  # fmt: skip
"""Names of other arrays of a batch, in any layout."""


def check_side(name: str, dtype: np.dtype[Any] | str = "int8") -> None:
    """Raise InputError unless a side array can have this name and type.

    >>> check_side("weight", "float32")
    """
    if not name.isascii() or not name.isidentifier() or len(name) > 64:
        raise InputError(
            f"side array {name!r}: expected a name of up to 64 letters, digits and '_', beginning "
            "with no digit"
        )
    if name in _TAKEN or name.startswith((TARGET, "chosen_", "rejected_")):
        raise InputError(
            f"side array {name!r}: batches have another array of that name; give it another one"
        )
    if np.dtype(dtype).name not in get_args(SideType):
        raise InputError(
            f"side array {name!r} is of {dtype}; expected whole numbers or floats of 8 to 64 bits: "
            f"{', '.join(get_args(SideType))}"
        )


def as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Numbers in another type, floats rounded; None if it does not hold one of them.

    >>> as_type(np.array([1, 200]), np.dtype(np.uint8)), as_type(np.array([300]), np.dtype("u1"))
    (array([  1, 200], dtype=uint8), None)
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        if dtype.kind == "f":
            fits = np.isfinite(cast) | ~np.isfinite(values)
        else:
            fits = (cast == values) & ((cast < 0) == (values < 0))  # large ones wrap
    return cast if fits.all() else None


FORMAT_VERSION = 2
COLUMNS = ("length", "anchor", "origin_file", "origin_row", "page")
"""Columns that every index has."""
SIDE_COLUMNS = ("anchor", "page")
"""Columns of the index that a side array has of its own, as `<name>.<column>`."""


class Entry(BaseModel):
    """A frozen part of a file that describes others; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _omitted(default: Any) -> Any:
    """The default of a field that the file leaves out where it is that."""
    return Field(default, exclude_if=lambda value: value == default)


class ShardEntry(Entry):
    """One ArrayRecord file of a source."""

    name: FileName
    documents: Count
    records: Count
    tokens: Count
    bytes: Count
    sha256: str


class SideEntry(Entry):
    """A side array of a source: one value for each token, in shards of its own."""

    dtype: SideType
    shards: list[ShardEntry]
    """One beside each shard of the source: the same documents, values in the place of tokens."""


class TokenizerEntry(Entry):
    """The tokenizer of the tokens; its files are in `tokenizer/`."""

    kind: str
    name: str
    files: dict[FileName, str]
    """File name in `tokenizer/` -> sha256 of its content."""
    vocab_size: Positive
    eod_id: TokenId
    bos_id: TokenId | None
    pad_id: TokenId | None

    @property
    def checksums(self) -> dict[str, str]:
        """The same, by names in the dataset."""
        return {f"tokenizer/{name}": sha256 for name, sha256 in self.files.items()}


class Amount(Entry):
    """Documents (or ranges of them) and their tokens."""

    documents: Count = 0
    ranges: Count = 0
    tokens: Count = 0

    @pydantic.model_serializer(mode="wrap")
    def _without_defaults(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        del fields["documents" if self.ranges else "ranges"]
        return fields


class _Stage(Entry):
    """What a source is, or was before documents were appended, or deleted."""

    documents: Count
    tokens: Count
    fingerprint: str
    checksums: dict[str, str]
    """Column -> sha256 of its values, little-endian."""
    parameters: Facts
    statistics: Facts
    deleted: Amount = _omitted(Amount())
    """Documents that it lacks, and the tokens that they had: those of shards are all 0."""


class Generation(_Stage):
    """What a source was: its first documents, in its first shards, of its first inputs."""

    shards: Count
    inputs: Count
    index: FolderName


class ViewAccount(Entry):
    """What a view keeps and drops of its source."""

    source: Amount
    kept: Amount
    """Each document once."""
    listed: Amount
    """Each document as often as it is listed."""
    dropped: dict[str, Amount]
    """By reason."""
    masked: dict[str, Amount] = {}
    """Ranges without loss by reason, those of a document once."""
    cut: dict[str, Amount] = _omitted({})
    """Ranges that are not there by reason, those of a document once."""
    loss_tokens: Count | None = None
    """Targets with loss of all that is listed; None if masks must be read to know."""


class ViewEntry(Entry):
    """A kept list of a source's documents; its columns are beside the source's index."""

    generation: str
    """The fingerprint that its source had: with another it is refused."""
    documents: Count
    """Those that are kept, each copy counted."""
    tokens: Count
    """Theirs."""
    fingerprint: str
    folder: FolderName
    """The folder of its columns, below one of its name."""
    reasons: list[str] = []
    """Why documents are dropped, and ranges masked: the columns have numbers in this list."""
    survivors: list[str] = []
    """Sources, and files of benchmarks, that dropped documents are copies in."""
    checksums: dict[str, str]
    """Column -> sha256 of its values, little-endian."""
    parameters: Facts
    account: ViewAccount


class SourceEntry(_Stage):
    """One source of one split."""

    masked: bool = False
    shards: list[ShardEntry]
    inputs: list[str]
    """Input files, relative names; an origin is an index into this list and a line or row."""
    index: FolderName = _omitted("index")
    """The folder of its columns."""
    generations: list[Generation] = _omitted([])
    """What it was before each time that documents were appended or deleted."""
    views: dict[FolderName, ViewEntry] = _omitted({})
    """Kept lists of its documents, by name."""
    side: dict[SideName, SideEntry] = _omitted({})
    """Arrays of one value a token, by name."""

    @pydantic.model_validator(mode="after")
    def _sound(self) -> "SourceEntry":
        """Each addition kept what was there, with an index of its own; side arrays fit."""
        stages = self.stages
        for name in ("documents", "tokens", "shards", "inputs"):
            counts = [getattr(stage, name) for stage in stages]
            if counts != sorted(counts):
                raise ValueError(f"the {name} of its generations do not rise")
        if len({stage.index for stage in stages}) < len(stages):
            raise ValueError("two of its generations have the same index")
        own = [(shard.documents, shard.tokens) for shard in self.shards]
        for name, side in self.side.items():
            if [(shard.documents, shard.tokens) for shard in side.shards] != own:
                raise ValueError(f"the shards of its side array {name!r} hold other documents")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process as JSON: a third of the time, where shards are many."""
        return SourceEntry.model_validate_json, (self.model_dump_json(),)

    def as_generation(self) -> Generation:
        """What it is now, kept when documents are appended."""
        same = {name: getattr(self, name) for name in Generation.model_fields}
        return Generation(**same | {"shards": len(self.shards), "inputs": len(self.inputs)})

    @property
    def all_shards(self) -> list[ShardEntry]:
        """Its shards, and those of its side arrays."""
        return [*self.shards, *(shard for side in self.side.values() for shard in side.shards)]

    @property
    def stages(self) -> list[Generation]:
        """What it was before each addition, and what it is now."""
        return [*self.generations, self.as_generation()]

    def of_side(self, name: str) -> "SourceEntry":
        """A side array as a source whose tokens are its values."""
        own = {column: self.checksums[f"{name}.{column}"] for column in SIDE_COLUMNS}
        changed: dict[str, Any] = {"shards": self.side[name].shards, "masked": False, "side": {}}
        changed["checksums"] = self.checksums | own
        return self.model_copy(update=changed)

    def check_sums(self, name: str) -> None:
        """Raise ValueError unless its shards add up to it, and its columns have checksums.

        So for each of its generations; `name` is what messages call it.
        """
        for stage in self.stages:
            shards = self.shards[: stage.shards]
            for what in ("documents", "tokens"):
                count, total = getattr(stage, what), sum(getattr(each, what) for each in shards)
                if count != total:
                    raise ValueError(f"{name} has {count:,} {what}, its shards together {total:,}")
            if stage.deleted.documents > stage.documents or stage.deleted.tokens > stage.tokens:
                raise ValueError(f"{name} lacks more documents than it has")
            for column in (*COLUMNS, *(("deleted",) if stage.deleted.documents else ())):
                if column not in stage.checksums:
                    raise ValueError(f"{name} has no checksum of its column {column!r}")

    def at(self, generation: int) -> "SourceEntry":
        """What it was after so many additions, 0 for the first conversion; raises IndexError."""
        if generation == len(self.generations):
            return self
        was = self.generations[range(len(self.generations))[generation]]
        side = {
            name: SideEntry(dtype=each.dtype, shards=each.shards[: was.shards])
            for name, each in self.side.items()
        }
        changed: dict[str, Any] = {name: getattr(was, name) for name in Generation.model_fields}
        changed |= {"shards": self.shards[: was.shards], "inputs": self.inputs[: was.inputs]}
        changed |= {"generations": self.generations[:generation], "side": side}
        return self.model_copy(update=changed)

    def generation_of(self, view: ViewEntry) -> "SourceEntry | None":
        """What it was when a view was made of it; None if it never was that."""
        stages = (self.at(number) for number in reversed(range(len(self.generations) + 1)))
        return next((each for each in stages if each.fingerprint == view.generation), None)


class Manifest(Entry):
    """The whole of `dataset.json`."""

    format: Literal["jaxdata"] = "jaxdata"
    version: int = FORMAT_VERSION
    tokenizer: TokenizerEntry
    dtype: Literal["uint16", "uint32"]
    record_tokens: RecordTokens
    sources: dict[SourceName, SourceEntry] = {}
    """`"<split>/<source>"` -> entry."""
    files: dict[FileName, str] = {}
    """Name of another file, for example of quarantined records -> sha256 of its content."""

    @pydantic.model_validator(mode="after")
    def _can_be(self) -> "Manifest":
        """Shards are named once, and have the documents, tokens and bytes that are said of them."""
        seen: set[str] = set()
        for name, entry in self.sources.items():
            entry.check_sums(name)
            kinds = [(np.dtype(self.dtype).itemsize + entry.masked, entry.shards)]
            kinds += [(np.dtype(side.dtype).itemsize, side.shards) for side in entry.side.values()]
            for item, shards in kinds:
                for shard in shards:
                    if shard.name in seen:
                        raise ValueError(f"it names {shard.name} twice")
                    seen.add(shard.name)
                    if shard.tokens * item > shard.bytes or shard.documents > shard.tokens:
                        raise ValueError(
                            f"{shard.name} cannot hold {shard.documents:,} documents of "
                            f"{shard.tokens:,} tokens in {shard.bytes:,} bytes"
                        )
        return self

    def record_spec(self, source: str) -> RecordSpec:
        """How documents of `"<split>/<source>"` are cut into records."""
        return RecordSpec(self.dtype, self.sources[source].masked, self.record_tokens)


def read_manifest(store: Store) -> Manifest:
    """The manifest of a dataset; raises DatasetError if it is missing or not as it was written."""
    manifest = read_json(store, MANIFEST, Manifest, FORMAT_VERSION)
    if manifest is None:
        if isinstance(store, RemoteStore):
            store.check_bucket()
        here = is_url(store.url) or Path(store.url).exists()
        lacks = f"it has no {MANIFEST}" if here else "there is no such folder"
        raise DatasetError(
            f"{store.url} is not a dataset: {lacks}. If a conversion was interrupted, "
            "the same command finishes it; to create a dataset, see: jaxdata convert --help"
        )
    return manifest


def update_manifest(store: Store, change: Callable[[Manifest | None], Manifest]) -> None:
    """Replace the manifest atomically by `change(manifest)`, which gets None if there is none."""
    url = f"{store.url}/{MANIFEST}"

    def rewrite(data: bytes | None) -> bytes:
        was = None if data is None else decode_json(data, url, Manifest, FORMAT_VERSION)
        return encode_json(change(was))

    store.update(MANIFEST, rewrite)


def update_sources(
    store: Store, changed: Callable[[Mapping[str, SourceEntry]], Mapping[str, SourceEntry]]
) -> None:
    """Replace entries of sources atomically: `changed(all)` gives the new ones."""

    def change(manifest: Manifest | None) -> Manifest:
        if manifest is None:
            raise DatasetError(f"{store.url} is no dataset any longer: its manifest was removed")
        sources = {**manifest.sources, **changed(manifest.sources)}
        return manifest.model_copy(update={"sources": sources})

    update_manifest(store, change)


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
