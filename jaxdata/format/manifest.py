"""`dataset.json`: everything a reader must know before it opens a shard.

Written last and atomically; it holds no time, path or host, so that the same text and parameters
give the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from jaxdata.errors import DatasetError
from jaxdata.format import sealed
from jaxdata.format.records import RecordLayout
from jaxdata.format.storage import Store

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "Generation",
    "Manifest",
    "ShardEntry",
    "SourceEntry",
    "TokenizerEntry",
    "read_manifest",
    "update_manifest",
]

FORMAT_VERSION = 1
MANIFEST = "dataset.json"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardEntry(_Entry):
    """One ArrayRecord file of a source."""

    name: str
    documents: int
    records: int
    tokens: int
    bytes: int
    sha256: str


class TokenizerEntry(_Entry):
    """The tokenizer that made the tokens; its files lie in `tokenizer/`."""

    kind: str
    name: str
    files: dict[str, str]
    """File name in `tokenizer/` -> sha256 of its content."""
    vocab_size: int
    eod_id: int
    bos_id: int | None
    pad_id: int | None

    @property
    def checksums(self) -> dict[str, str]:
        """The same with the names that the files have in the dataset."""
        return {f"tokenizer/{name}": sha256 for name, sha256 in self.files.items()}


class Generation(_Entry):
    """What a source was before documents were added to it: the first so many of all it has."""

    documents: int
    tokens: int
    shards: int
    inputs: int
    fingerprint: str
    index: str
    checksums: dict[str, str] = {}
    parameters: dict[str, Any]
    statistics: dict[str, Any]


class SourceEntry(_Entry):
    """One source of one split."""

    documents: int
    tokens: int
    masked: bool = False
    shards: list[ShardEntry]
    fingerprint: str
    inputs: list[str]
    """Input files, relative names; an origin is an index into this list and a line or row."""
    parameters: dict[str, Any]
    statistics: dict[str, Any]
    index: str = "index"
    """The folder of its columns."""
    checksums: dict[str, str] = {}
    """Column -> sha256 of its values, little-endian; empty as an earlier jaxdata wrote it."""
    generations: list[Generation] = []
    """What it was before each time that documents were added."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a source that was never added to needs not say."""
        fields: dict[str, Any] = dump(self)
        if not self.generations:
            del fields["generations"], fields["index"]
        return fields

    def as_generation(self) -> Generation:
        """What it is now, to be kept when documents are added."""
        same = {name: getattr(self, name) for name in Generation.model_fields}
        return Generation(**same | {"shards": len(self.shards), "inputs": len(self.inputs)})

    def at(self, generation: int) -> SourceEntry:
        """What it was with so many additions: 0 is what it began as; raises IndexError."""
        if generation == len(self.generations):
            return self
        was = self.generations[range(len(self.generations))[generation]]
        return self.model_copy(
            update={name: getattr(was, name) for name in Generation.model_fields}
            | {"shards": self.shards[: was.shards], "inputs": self.inputs[: was.inputs]}
            | {"generations": self.generations[:generation]}
        )


class Manifest(_Entry):
    """The whole of `dataset.json`."""

    format: Literal["jaxdata"] = "jaxdata"
    version: int = FORMAT_VERSION
    tokenizer: TokenizerEntry
    dtype: Literal["uint16", "uint32"]
    record_tokens: int
    sources: dict[str, SourceEntry] = {}
    """`"<split>/<source>"` -> entry."""
    files: dict[str, str] = {}
    """Name of another file, such as one of quarantined records -> sha256 of its content."""

    def layout(self, source: str) -> RecordLayout:
        """How the records of `"<split>/<source>"` lie in its shards."""
        return RecordLayout(self.dtype, self.sources[source].masked, self.record_tokens)

    def encode(self) -> bytes:
        """The bytes of `dataset.json`."""
        return sealed.encode(self)


def read_manifest(store: Store, *, to_change: bool = False) -> Manifest:
    """The manifest of a dataset; raises DatasetError where there is none that we can read.

    Args:
        store: the dataset.
        to_change: compare it with its checksum, too, before a new one hides that it differs.
    """
    data = store.read(MANIFEST)
    if data is None:
        raise DatasetError(
            f"{store.url} is not a dataset: it has no {MANIFEST}. If a conversion was interrupted, "
            "the same command finishes it; to make a dataset, see: jaxdata convert --help"
        )
    return _decode(store, data, to_change=to_change)


def update_manifest(store: Store, change: Callable[[Manifest | None], Manifest]) -> None:
    """Replace the manifest atomically by `change(manifest)` (None where there is none yet)."""

    def rewrite(data: bytes | None) -> bytes:
        if data is None:
            return change(None).encode()
        return change(_decode(store, data, to_change=True)).encode()

    store.update(MANIFEST, rewrite)


def _decode(store: Store, data: bytes, *, to_change: bool) -> Manifest:
    url = f"{store.url}/{MANIFEST}"
    manifest = sealed.decode(data, url, Manifest, FORMAT_VERSION)
    if to_change and sealed.seal_holds(data) is False:
        raise DatasetError(
            f"{url} differs from its checksum: restore it from a copy; if you changed it "
            'yourself, remove its line "sha256"'
        )
    return manifest
