"""Documents of a dataset on disk, read as slices of its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.records import RecordLayout, file_offset, without_headers
from jaxdata.format.storage import Store

__all__ = ["StoredDocuments"]

Ints = NDArray[np.int64]
Offsets = Callable[[Any, Any], Ints]
_BYTE = np.dtype(np.uint8)


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
        self._dtype = np.dtype(layout.dtype).newbyteorder("<")

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
        return self._read(documents, starts, counts, self.layout.token_offset, self._dtype)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See ``Documents``."""
        return self._read(documents, starts, counts, self.layout.mask_offset, _BYTE)

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Offsets, dtype: np.dtype[Any]
    ) -> list[NDArray[Any]]:
        shard, stream = self.index.locate(documents)
        lengths = self.lengths[documents]
        begin = stream + offsets(lengths, starts)
        first, last = _in_file(begin, counts * dtype.itemsize)
        record = self.layout.record_tokens
        in_one_record = starts // record == (starts + counts - 1) // record
        pieces = np.flatnonzero(~in_one_record | (last - first != counts * dtype.itemsize))
        in_one_piece = np.where(np.isin(np.arange(len(counts)), pieces), 0, counts)
        found = self.store.gather(self._shards, shard, first, in_one_piece, dtype)
        for k in pieces.tolist():
            edges = _record_edges(int(starts[k]), int(counts[k]), record)
            begins = stream[k] + offsets(lengths[k], edges[:-1])
            found[k] = self._join(shard[k], begins, np.diff(edges) * dtype.itemsize).view(dtype)
        return found

    def _join(self, shard: np.int64, begin: Ints, size: Ints) -> NDArray[np.uint8]:
        """Ranges of one shard's stream, which block headers may interrupt, end to end."""
        first, last = _in_file(begin, size)
        shards = np.full(len(begin), shard)
        raw = self.store.gather(self._shards, shards, first, last - first, _BYTE)
        parts = zip(raw, first.tolist(), strict=True)
        return np.concatenate([without_headers(part, at) for part, at in parts])


def _in_file(begin: Ints, size: Ints) -> tuple[Ints, Ints]:
    """First and last byte (exclusive) in the file of ranges of the stream."""
    first = file_offset(begin)
    return first, np.where(size > 0, file_offset(begin + size - 1) + 1, first)


def _record_edges(start: int, count: int, record: int) -> Ints:
    """Where a range of tokens is cut by the records it spans: start, cuts, end."""
    cuts = range((start // record + 1) * record, start + count, record)
    return np.array([start, *cuts, start + count])
