"""Documents of a dataset on disk, read as slices of its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.records import STREAM_BLOCK, RecordLayout, file_offset
from jaxdata.format.storage import Store
from jaxdata.rows.documents import Pieces, RangedDocuments
from jaxdata.rows.windows import expand

__all__ = ["StoredDocuments"]

Ints = NDArray[np.int64]
Offsets = Callable[[Any, Any], Ints]


class StoredDocuments(RangedDocuments):
    """One source of a dataset on disk (see `Documents`).

    Args:
        store: the dataset's root.
        name: `"<split>/<source>"`.
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

    def origin(self, index: int) -> tuple[str, int]:
        """The input file that a document came from, and its line (from 1) or row (from 0) there.

        In an archive that is a file in it: `("pages.tar: a.jsonl", 17)`.
        """
        document = range(len(self))[index]
        file, row = self.index.origin(document)
        if member := self.index.member(document):
            return f"{file}: {member.name}", member.number
        return file, row

    def kept(self, index: int) -> dict[str, Any]:
        """The fields of a document that its conversion was asked to keep (`--keep`)."""
        return self.index.kept(range(len(self))[index])

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`; views of the memory maps."""
        return self._read(documents, starts, counts, self.layout.token_offset, self.layout.item)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        return self._read(documents, starts, counts, self.layout.mask_offset, 1)

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Offsets, item: int
    ) -> Pieces:
        shard, stream = self.index.locate(documents)
        lengths = self.lengths[documents]
        record = self.layout.record_tokens
        whole = np.arange(len(documents))
        if lengths.max(initial=0) > record:
            whole, starts, counts = _cut(starts, counts, record)
            shard, stream, lengths = shard[whole], stream[whole], lengths[whole]
        # A block header of the file may fall into a record.
        piece, begin, size = _cut(stream + offsets(lengths, starts), counts * item, STREAM_BLOCK)
        first = file_offset(begin)
        found = self.store.gather(self._shards, shard[piece], first, first + size)
        return Pieces(found, whole[piece])


def _cut(start: Ints, size: Ints, every: int) -> tuple[Ints, Ints, Ints]:
    """Cut ranges at multiples of `every`: (number of the range, start, size) of each piece."""
    first = start // every
    last = (start + size - 1) // every
    if (first == last).all():
        return np.arange(len(start)), start, size
    of, number = expand(last - first + 1)
    edge = (first[of] + number) * every
    begin = np.maximum(start[of], edge)
    return of, begin, np.minimum((start + size)[of], edge + every) - begin
