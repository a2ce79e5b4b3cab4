"""Whether the index of a source matches the manifest, and its shards the index."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.index import SourceIndex, anchor_chunks
from jaxdata.format.records import RecordSpec, file_offset
from jaxdata.format.verify.damage import Damage, damage_of_array, damage_of_file, unreadable

_SIZE_BYTES = 4  # of the eight that hold a record's size: none reaches 4 GiB
_RECORDS = 2**18  # whose headers are in memory at a time
_FOLLOWING = ("length", "anchor")  # the first from the records, the second from the first
_COMPARED = (*_FOLLOWING, "origin_file")


def damage_of_columns(index: SourceIndex) -> list[Damage]:
    """Compare every column with its checksum, and the sound ones with the manifest."""
    damage: dict[str, list[Damage]] = {}
    for name, (dtype, size) in index.columns.items():
        sha256 = index.entry.checksums.get(name)
        damage[name] = damage_of_array(index.store, index.file(name), sha256, dtype, size)
    sound = [name for name in _COMPARED if not damage[name]]
    return [*chain(*damage.values()), *damage_of_index(index, sound)]


def damage_of_places(index: SourceIndex) -> list[Damage]:
    """Compare the lengths and anchors of an index whose other columns are another's."""
    return list(damage_of_index(index, _FOLLOWING))


def damage_of_index(
    index: SourceIndex, names: Collection[str] = (*_COMPARED, "origin_row")
) -> Iterator[Damage]:
    """Compare some columns with the manifest, and with each other."""
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        try:
            columns[name] = index.store.read_array(index.file(name), *index.columns[name])
        except (DatasetError, OSError, ValueError) as error:
            yield unreadable(index.file(name), error)
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
    return int(lengths.sum(dtype=np.int64)), int(index.spec.records(lengths).sum())


def _follow(index: SourceIndex, lengths: NDArray[np.uint32], anchors: NDArray[np.uint64]) -> bool:
    at = 0
    for expected in anchor_chunks(lengths, index.spec):
        if not np.array_equal(anchors[at : at + len(expected)], expected):
            return False
        at += len(expected)
    return True


def unchecked_columns(index: SourceIndex) -> list[str]:
    """The columns that are covered neither by a checksum nor by another column or file."""
    known = {*index.entry.checksums, *_FOLLOWING}
    return [index.file(name) for name in index.columns if name not in known]


def damage_of_shard(index: SourceIndex, number: int) -> list[Damage]:
    """Compare a shard with its checksum, and its records with the index."""
    shard = index.entry.shards[number]
    headers = _Headers(_known_lengths(index, number), index.spec)
    damage = damage_of_file(index.store, shard.name, shard.sha256, shard.bytes, headers.compare)
    if not damage and not headers.fit:
        what = f"its lengths are not those of the records in {shard.name}"
        return [Damage(index.file("length"), what)]
    return damage


def _known_lengths(index: SourceIndex, number: int) -> NDArray[np.uint32]:
    """Lengths of the documents of a shard; none if the index is damaged."""
    shard, none = index.entry.shards[number], np.zeros(0, np.uint32)
    try:
        lengths = _of_shard(index, number, index.lengths)
    except (DatasetError, OSError, ValueError):  # `damage_of_columns` names it
        return none
    return lengths if _sums(index, lengths) == (shard.tokens, shard.records) else none


def _of_shard(index: SourceIndex, number: int, column: NDArray[np.uint32]) -> NDArray[np.uint32]:
    start = index.shard_starts[number]
    return column[start : start + index.entry.shards[number].documents]


class _Headers:
    """The sizes in the chunk headers of a file that holds documents of `lengths`."""

    def __init__(self, lengths: NDArray[np.uint32], spec: RecordSpec) -> None:
        self._pieces = _expected(lengths, spec)
        self._places, self._content = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._fit = True

    def compare(self, buffer: memoryview | bytes, start: int) -> None:
        """Compare the next buffer of the file, which begins at byte `start`."""
        stop = start + len(buffer)
        while not len(self._places) or self._places[-1] < stop:
            if not self._expect_more():
                break
        inside = int(np.searchsorted(self._places, stop))
        found = np.frombuffer(buffer, np.uint8)[self._places[:inside] - start]
        self._fit &= np.array_equal(found, self._content[:inside])
        self._places, self._content = self._places[inside:], self._content[inside:]

    def _expect_more(self) -> bool:
        """Take the next headers; False if there are no more."""
        for places, content in self._pieces:
            self._places = np.concatenate([self._places, places])
            self._content = np.concatenate([self._content, content])
            return True
        return False

    @property
    def fit(self) -> bool:
        """Whether all of them were in the file."""
        return self._fit and not len(self._places) and not self._expect_more()


def _expected(
    lengths: NDArray[np.uint32], spec: RecordSpec
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """The places of the bytes that hold sizes of records, and these bytes, in order."""
    before = 0
    for some in _of_few_records(lengths, spec):
        fields, sizes = spec.size_fields(some)
        places = file_offset(before + fields[:, None] + np.arange(_SIZE_BYTES)).ravel()
        yield places, sizes.astype("<u4").view(np.uint8)
        before += int(spec.stream_bytes(some).sum())


def _of_few_records(lengths: NDArray[np.uint32], spec: RecordSpec) -> Iterator[NDArray[np.int64]]:
    """Lengths of some documents at a time; one of very many records in parts of whole records."""
    first = 0
    while first < len(lengths):
        some = lengths[first : first + _RECORDS].astype(np.int64)
        fitting = int(np.searchsorted(np.cumsum(spec.records(some)), _RECORDS, side="right"))
        if fitting:
            yield some[:fitting]
        else:
            step, long = _RECORDS * spec.record_tokens, int(some[0])
            yield from (np.array([min(step, long - at)]) for at in range(0, long, step))
        first += max(fitting, 1)
