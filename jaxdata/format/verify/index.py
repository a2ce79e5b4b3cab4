"""Whether the index of a source is what the manifest says, and its shards what the index says."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.index import SourceIndex, anchor_pieces
from jaxdata.format.records import RecordLayout, file_offset
from jaxdata.format.verify.damage import Damage, damage_of_array, damage_of_file, unreadable

__all__ = ["damage_of_columns", "damage_of_index", "damage_of_shard", "unchecked_columns"]

_SIZE_BYTES = 4  # of the eight in which a header says a record's size: none reaches 4 GiB
_FOLLOWING = ("length", "anchor")  # from the records, and from the lengths
_COMPARED = (*_FOLLOWING, "origin_file")


def damage_of_columns(index: SourceIndex) -> list[Damage]:
    """Read every column and compare it with its checksum, and what is sound with the manifest."""
    damage: dict[str, list[Damage]] = {}
    for name, (dtype, size) in index.columns.items():
        sha256 = index.entry.checksums.get(name)
        damage[name] = damage_of_array(index.store, index.file(name), sha256, dtype, size)
    sound = [name for name in _COMPARED if not damage[name]]
    return [*chain(*damage.values()), *damage_of_index(index, sound)]


def damage_of_index(
    index: SourceIndex, names: Collection[str] = (*_COMPARED, "origin_row")
) -> Iterator[Damage]:
    """Compare some columns with the manifest's numbers, and with each other."""
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        file, size = index.file(name), index.columns[name][1]
        try:
            columns[name] = index.store.read_array(file)
        except (DatasetError, OSError, ValueError) as error:
            yield unreadable(file, error)
            continue
        if len(columns[name]) != size:
            yield Damage(file, f"it has {len(columns.pop(name)):,} entries, not {size:,}")
    if "length" in columns:
        yield from _wrong_sums(index, columns["length"])
    if {*_FOLLOWING} <= columns.keys() and not _follow(index, columns["length"], columns["anchor"]):
        yield Damage(index.file("anchor"), "it does not follow from the lengths")
    files = len(index.entry.inputs)
    if columns.get("origin_file", np.zeros(0)).max(initial=0) >= files:
        yield Damage(index.file("origin_file"), f"it names more files than the {files} there are")


def _wrong_sums(index: SourceIndex, lengths: NDArray[np.uint32]) -> Iterator[Damage]:
    for number, shard in enumerate(index.entry.shards):
        tokens, records = _sums(index, _of_shard(index, number, lengths))
        if (tokens, records) != (shard.tokens, shard.records):
            yield Damage(
                index.file("length"),
                f"for {shard.name} it adds up to {tokens:,} tokens in {records:,} records, not to "
                f"{shard.tokens:,} in {shard.records:,}",
            )


def _sums(index: SourceIndex, lengths: NDArray[np.uint32]) -> tuple[int, int]:
    """Tokens and records of documents."""
    return int(lengths.sum(dtype=np.int64)), int(index.layout.records(lengths).sum())


def _follow(index: SourceIndex, lengths: NDArray[np.uint32], anchors: NDArray[np.uint64]) -> bool:
    at = 0
    for expected in anchor_pieces(lengths, index.layout):
        if not np.array_equal(anchors[at : at + len(expected)], expected):
            return False
        at += len(expected)
    return True


def unchecked_columns(index: SourceIndex) -> list[str]:
    """The columns that neither a checksum nor another column or file vouches for."""
    known = {*index.entry.checksums, *_FOLLOWING}
    return [index.file(name) for name in index.columns if name not in known]


def damage_of_shard(index: SourceIndex, number: int) -> list[Damage]:
    """Compare a shard with its checksum, and its records with the index."""
    shard = index.entry.shards[number]
    headers = _Headers(_known_lengths(index, number), index.layout)
    damage = damage_of_file(index.store, shard.name, shard.sha256, shard.bytes, headers.compare)
    if not damage and not headers.fit:
        what = f"its lengths are not those of the records in {shard.name}"
        return [Damage(index.file("length"), what)]
    return damage


def _known_lengths(index: SourceIndex, number: int) -> NDArray[np.uint32]:
    """Lengths of the documents of a shard; none where the index cannot say."""
    shard, none = index.entry.shards[number], np.zeros(0, np.uint32)
    try:
        lengths = _of_shard(index, number, index.lengths)
    except (DatasetError, OSError, ValueError):  # which `damage_of_columns` names
        return none
    # Damaged ones, which it names too, could be of more records than memory holds.
    return lengths if _sums(index, lengths) == (shard.tokens, shard.records) else none


def _of_shard(index: SourceIndex, number: int, column: NDArray[np.uint32]) -> NDArray[np.uint32]:
    start = index.shard_starts[number]
    return column[start : start + index.entry.shards[number].documents]


class _Headers:
    """The sizes that the chunk headers of a file must say, if it holds documents of `lengths`."""

    def __init__(self, lengths: NDArray[np.uint32], layout: RecordLayout) -> None:
        fields, sizes = layout.size_fields(lengths)
        self._places = file_offset(fields[:, None] + np.arange(_SIZE_BYTES)).ravel()
        self._content = sizes.astype("<u4").view(np.uint8)
        self.fit = True

    def compare(self, piece: memoryview | bytes, start: int) -> None:
        """Look at the next piece of the file, which begins at byte `start`."""
        here = slice(*np.searchsorted(self._places, [start, start + len(piece)]))
        found = np.frombuffer(piece, np.uint8)[self._places[here] - start]
        self.fit &= np.array_equal(found, self._content[here])
