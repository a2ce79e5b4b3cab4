"""What can be wrong with a file of a dataset, and how it is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.index import ANCHOR_EVERY, SourceIndex, anchors
from jaxdata.format.manifest import TokenizerEntry
from jaxdata.format.records import RecordLayout, file_offset
from jaxdata.format.storage import Store

__all__ = ["Damage", "damage_of_index", "damage_of_shard", "damage_of_tokenizer"]

_SIZE_BYTES = 4  # of the eight in which a header says a record's size: none reaches 4 GiB


@dataclass(frozen=True)
class Damage:
    """One file that is not as it should be.

    Attributes:
        file: its name in the dataset.
        what: what is wrong with it.
    """

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def damage_of_tokenizer(store: Store, tokenizer: TokenizerEntry) -> Iterator[Damage]:
    """Compare the tokenizer's files with their checksums."""
    for name, sha256 in tokenizer.files.items():
        file = f"tokenizer/{name}"
        try:
            content = hashlib.sha256(b"".join(store.pieces(file))).hexdigest()
        except (DatasetError, OSError) as error:
            yield _unreadable(file, error)
            continue
        if content != sha256:
            yield Damage(file, "its content differs from its checksum")


def damage_of_index(index: SourceIndex) -> Iterator[Damage]:
    """Compare the columns with the manifest's numbers, and with each other."""
    columns: dict[str, NDArray[Any]] = {}
    documents = index.entry.documents
    sizes = {"length": documents, "origin_file": documents, "origin_row": documents}
    for name, size in (sizes | {"anchor": -(-documents // ANCHOR_EVERY)}).items():
        file = f"{index.name}/{index.entry.index}/{name}"
        try:
            columns[name] = index.store.read_array(file)
        except (DatasetError, OSError, ValueError) as error:
            yield _unreadable(file, error)
            continue
        if len(columns[name]) != size:
            yield Damage(file, f"it has {len(columns.pop(name)):,} entries, not {size:,}")
    if "length" in columns:
        yield from _wrong_lengths(index, columns)
    if (columns.get("origin_file", np.zeros(0)) >= len(index.entry.inputs)).any():
        file = f"{index.name}/{index.entry.index}/origin_file"
        yield Damage(file, f"it names more files than the {len(index.entry.inputs)} there are")


def _wrong_lengths(index: SourceIndex, columns: dict[str, NDArray[Any]]) -> Iterator[Damage]:
    lengths = columns["length"]
    for number, shard in enumerate(index.entry.shards):
        own = _of_shard(index, number, lengths)
        tokens, records = int(own.sum(dtype=np.int64)), int(index.layout.records(own).sum())
        if (tokens, records) != (shard.tokens, shard.records):
            yield Damage(
                f"{index.name}/{index.entry.index}/length",
                f"for {shard.name} it adds up to {tokens:,} tokens in {records:,} records, not to "
                f"{shard.tokens:,} in {shard.records:,}",
            )
    expected = anchors(lengths, index.layout)
    if "anchor" in columns and not np.array_equal(columns["anchor"], expected):
        yield Damage(
            f"{index.name}/{index.entry.index}/anchor", "it does not follow from the lengths"
        )


def damage_of_shard(index: SourceIndex, number: int) -> Iterator[Damage]:
    """Compare a shard with its checksum, and its records with the index."""
    shard = index.entry.shards[number]
    headers = _Headers(_known_lengths(index, number), index.layout)
    content, size = hashlib.sha256(), 0
    try:
        for piece in index.store.pieces(shard.name):
            content.update(piece)
            headers.compare(np.frombuffer(piece, np.uint8), size)
            size += len(piece)
    except (DatasetError, OSError) as error:
        yield _unreadable(shard.name, error)
        return
    if size != shard.bytes:
        yield Damage(shard.name, f"it has {size:,} bytes, not {shard.bytes:,}")
    elif content.hexdigest() != shard.sha256:
        yield Damage(shard.name, "its content differs from its checksum")
    elif not headers.fit:
        what = f"its lengths are not those of the records in {shard.name}"
        yield Damage(f"{index.name}/{index.entry.index}/length", what)


def _known_lengths(index: SourceIndex, number: int) -> NDArray[np.uint32]:
    """Lengths of the documents of a shard; none where the index cannot say."""
    try:
        return _of_shard(index, number, index.lengths)
    except (DatasetError, OSError, ValueError):  # which `damage_of_index` names
        return np.zeros(0, np.uint32)


def _of_shard(index: SourceIndex, number: int, column: NDArray[np.uint32]) -> NDArray[np.uint32]:
    start = index.shard_starts[number]
    return column[start : start + index.entry.shards[number].documents]


def _unreadable(file: str, error: Exception) -> Damage:
    if isinstance(error, OSError) and error.strerror:
        return Damage(file, f"it cannot be read: {error.strerror}")
    return Damage(file, str(error))


class _Headers:
    """The sizes that the chunk headers of a file must say, if it holds documents of `lengths`."""

    def __init__(self, lengths: NDArray[np.uint32], layout: RecordLayout) -> None:
        fields, sizes = layout.size_fields(lengths)
        self._places = file_offset(fields[:, None] + np.arange(_SIZE_BYTES)).ravel()
        self._content = sizes.astype("<u4").view(np.uint8)
        self.fit = True

    def compare(self, piece: NDArray[np.uint8], start: int) -> None:
        """Look at the next piece of the file, which begins at byte `start`."""
        here = slice(*np.searchsorted(self._places, [start, start + len(piece)]))
        self.fit &= np.array_equal(piece[self._places[here] - start], self._content[here])
