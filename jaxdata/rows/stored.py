"""Documents of a dataset on disk, read as slices of its shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.records import STREAM_BLOCK, RecordLayout, file_offset
from jaxdata.format.storage import Store
from jaxdata.rows.windows import expand

__all__ = ["StoredDocuments"]

Ints = NDArray[np.int64]
Offsets = Callable[[Any, Any], Ints]
_BYTE = np.dtype(np.uint8)
_NO_BYTES = np.empty(0, np.uint8)


class StoredDocuments:
    """One source of a dataset on disk (see ``Documents``).

    Args:
        store: the dataset's root.
        name: ``"<split>/<source>"``.
        entry: what the manifest says of it.
        layout: how its documents lie in records.
    """

    def __init__(self, store: Store, name: str, entry: SourceEntry, layout: RecordLayout) -> None:
        self.store, self.name = store, name
        self.entry, self.layout = entry, layout
        self.masked, self.fingerprint = entry.masked, entry.fingerprint
        self.index = SourceIndex(store, name, entry, layout)
        self._shards = [shard.name for shard in entry.shards]
        self.dtype = np.dtype(layout.dtype).newbyteorder("<")

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredDocuments, (self.store, self.name, self.entry, self.layout)

    def __repr__(self) -> str:
        return f"StoredDocuments({self.name!r}, {len(self):,} documents, {self.store.url!r})"

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document with EOD, uint32 (documents,)."""
        return self.index.lengths

    def __len__(self) -> int:
        return self.entry.documents

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        item: dict[str, NDArray[Any]] = {"tokens": self.read(index)}
        if self.masked:
            item["loss_mask"] = self._range(self.masks, index, 0, None).astype(bool)
        return item

    def read(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Tokens ``[start, stop)`` of one document; reads no more of it than that."""
        return self._range(self.tokens, index, start, stop)

    def _range(self, method: Any, index: int, start: int, stop: int | None) -> NDArray[Any]:
        document = range(len(self))[index]
        start, stop, _ = slice(start, stop).indices(int(self.lengths[document]))
        one = (np.array([value]) for value in (document, start, max(stop - start, 0)))
        return np.array(method(*one)[0])

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See ``Documents``; views of the memory map wherever a range lies in one piece."""
        return self._read(documents, starts, counts, self.layout.token_offset, self.dtype)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See ``Documents``."""
        return self._read(documents, starts, counts, self.layout.mask_offset, _BYTE)

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Offsets, dtype: np.dtype[Any]
    ) -> list[NDArray[Any]]:
        shard, stream = self.index.locate(documents)
        lengths = self.lengths[documents]
        size = counts * dtype.itemsize
        first, last = _in_file(stream + offsets(lengths, starts), size)
        record = self.layout.record_tokens
        one_record = starts // record == (starts + np.maximum(counts, 1) - 1) // record
        whole = one_record & (last - first == size)
        found = self.store.gather(self._shards, shard, first, counts * whole, dtype)
        cut = np.flatnonzero(~whole)
        if len(cut):
            # Of a range that spans records, or that a block header falls into: its pieces.
            part, token, count = _cut(starts[cut], counts[cut], record)
            begin = stream[cut][part] + offsets(lengths[cut][part], token)
            joined = self._join(shard[cut][part], begin, count * dtype.itemsize, part)
            for k, data in zip(cut.tolist(), joined, strict=True):
                found[k] = data.view(dtype)
        return found

    def _join(self, shard: Ints, begin: Ints, size: Ints, whole: Ints) -> list[NDArray[np.uint8]]:
        """Parts of the stream, joined where they belong to the same number in ``whole``."""
        part, byte, size = _cut(begin, size, STREAM_BLOCK)
        pieces = self.store.gather(self._shards, shard[part], file_offset(byte), size, _BYTE)
        edges = np.searchsorted(whole[part], np.arange(whole.max() + 2)).tolist()
        return [np.concatenate([_NO_BYTES, *pieces[a:b]]) for a, b in pairwise(edges)]


def _in_file(begin: Ints, size: Ints) -> tuple[Ints, Ints]:
    """First and last byte (exclusive) in the file of ranges of the stream."""
    first = file_offset(begin)
    return first, np.where(size > 0, file_offset(begin + size - 1) + 1, first)


def _cut(start: Ints, size: Ints, every: int) -> tuple[Ints, Ints, Ints]:
    """Cut ranges at multiples of ``every``: (number of the range, start, size) of each piece."""
    first = start // every
    pieces = np.where(size > 0, (start + size - 1) // every - first + 1, 0)
    of, number = expand(pieces)
    begin = np.maximum(start[of], (first[of] + number) * every)
    end = np.minimum((start + size)[of], (first[of] + number + 1) * every)
    return of, begin, end - begin
