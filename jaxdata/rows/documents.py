"""Documents of one source: lengths for the planner, ranges of tokens for the reader.

``Documents`` is the contract that packing needs; ``StoredDocuments`` reads it from a dataset on
disk, ``ArrayDocuments`` from arrays in memory. All are grain ``RandomAccessDataSource``s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.errors import InputError
from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.records import RecordLayout, file_offset, without_headers
from jaxdata.format.storage import ByteReader, Store

__all__ = ["ArrayDocuments", "Documents", "StoredDocuments", "as_documents"]

Ints = NDArray[np.int64]


class Documents(Protocol):
    """Documents that can be packed: the contract of every source.

    A document is a run of tokens ending with EOD (foreign ones may lack it). Nothing but
    ``lengths`` is needed to plan; ``tokens`` and ``masks`` read only the ranges they are asked for.
    """

    @property
    def name(self) -> str:
        """Names the source in seeds: ``"<split>/<source>"``."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes with the content, and with nothing else."""
        ...

    @property
    def masked(self) -> bool:
        """Whether the source stores loss masks."""
        ...

    @property
    def store(self) -> Store | None:
        """Where plans may be kept; None for memory."""
        ...

    @property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each document, (documents,) unsigned integers."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """``{"tokens": (n,) integers}`` and, where masked, ``"loss_mask"``: (n,) bool."""
        ...

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Sequence[NDArray[Any]]:
        """Tokens ``[starts[k], starts[k] + counts[k])`` of ``documents[k]``, for every *k*."""
        ...

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Sequence[NDArray[Any]]:
        """Stored masks of the same ranges (1: the token has loss when it is a target)."""
        ...


class StoredDocuments:
    """One source of a dataset on disk, read by slicing its shards.

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
        self._shards: dict[int, ByteReader] = {}

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
            item["loss_mask"] = self._ranges(self.masks, index, 0, None).astype(bool)
        return item

    def read(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Tokens ``[start, stop)`` of one document; reads no more of it than that."""
        return self._ranges(self.tokens, index, start, stop)

    def _ranges(self, method: Any, index: int, start: int, stop: int | None) -> NDArray[Any]:
        document = range(len(self))[index]
        start, stop, _ = slice(start, stop).indices(int(self.lengths[document]))
        one = (np.array([value]) for value in (document, start, max(stop - start, 0)))
        return np.array(method(*one)[0])

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See :class:`Documents`; views of the memory map wherever a range lies in one piece."""
        offsets = self.layout.token_offset
        return self._read(documents, starts, counts, offsets, np.dtype(self.layout.dtype))

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See :class:`Documents`."""
        offsets = self.layout.mask_offset
        return self._read(documents, starts, counts, offsets, np.dtype(np.uint8))

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Any, dtype: np.dtype[Any]
    ) -> list[NDArray[Any]]:
        shard, stream = self.index.locate(documents)
        lengths = self.lengths[documents]
        begin = stream + offsets(lengths, starts)
        end = begin + counts * dtype.itemsize
        first, last = file_offset(begin), file_offset(np.maximum(end - 1, begin)) + 1
        record = self.layout.record_tokens
        one_record = starts // record == (starts + counts - 1) // record
        whole = one_record & (last - first == end - begin)
        return [
            self._shard(number).read(a, b).view(dtype)
            if simple
            else self._pieces(number, begins, lengths[k], starts[k], counts[k], offsets, dtype)
            for k, (number, a, b, simple, begins) in enumerate(
                zip(*(x.tolist() for x in (shard, first, last, whole, stream)), strict=True)
            )
        ]

    def _pieces(
        self,
        shard: int,
        stream: int,
        length: Any,
        start: int,
        count: int,
        offsets: Any,
        dtype: np.dtype[Any],
    ) -> NDArray[Any]:
        """A range that spans records, or that a block header of the file falls into."""
        record = self.layout.record_tokens
        edges = [
            start,
            *range((start // record + 1) * record, start + count, record),
            start + count,
        ]
        pieces = [np.empty(0, np.uint8)]
        for a, b in pairwise(edges):
            begin = stream + int(offsets(length, a))
            end = begin + (b - a) * dtype.itemsize
            first, last = int(file_offset(begin)), int(file_offset(max(end - 1, begin))) + 1
            raw = self._shard(shard).read(first, last)
            pieces.append(without_headers(raw, first)[: end - begin])
        return np.concatenate(pieces).view(dtype)

    def _shard(self, number: int) -> ByteReader:
        if number not in self._shards:
            self._shards[number] = self.store.open(self.entry.shards[number].name)
        return self._shards[number]


class ArrayDocuments:
    """Documents held in memory, for tests and small experiments.

    >>> docs = ArrayDocuments([[5, 6, 0], [7, 0]])
    >>> docs.lengths.tolist(), docs[1]["tokens"].tolist()
    ([3, 2], [7, 0])
    """

    store = None

    def __init__(
        self,
        tokens: Sequence[ArrayLike],
        masks: Sequence[ArrayLike] | None = None,
        name: str = "documents",
    ) -> None:
        self.name, self.masked = name, masks is not None
        self._tokens = [np.asarray(document) for document in tokens]
        self._masks = [np.asarray(mask, np.uint8) for mask in masks or []]
        for number, (document, mask) in enumerate(zip(self._tokens, self._masks, strict=False)):
            if len(mask) != len(document):
                raise InputError(f"document {number}: {len(document)} tokens, mask of {len(mask)}")

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return np.array([len(document) for document in self._tokens], np.uint32)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens and masks."""
        content = hashlib.sha256()
        for array in (self.lengths, *self._tokens, *self._masks):
            content.update(np.ascontiguousarray(array).astype(np.int64).tobytes())
        return content.hexdigest()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        item = {"tokens": self._tokens[index]}
        if self.masked:
            item["loss_mask"] = self._masks[index].astype(bool)
        return item

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See :class:`Documents`."""
        return _slices(self._tokens, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> list[NDArray[Any]]:
        """See :class:`Documents`."""
        return _slices(self._masks, documents, starts, counts)


def _slices(
    arrays: list[NDArray[Any]], documents: Ints, starts: Ints, counts: Ints
) -> list[NDArray[Any]]:
    ranges = zip(documents.tolist(), starts.tolist(), counts.tolist(), strict=True)
    return [arrays[document][start : start + count] for document, start, count in ranges]


def as_documents(docs: Any) -> Documents:
    """Take anything that can be packed; raises InputError where it lacks ``lengths``."""
    if hasattr(docs, "lengths") and hasattr(docs, "tokens"):
        documents: Documents = docs
        return documents
    raise InputError(
        f"cannot pack a {type(docs).__name__}: expected a source with lengths, as "
        "dataset.source(split, name) gives it, or jaxdata.ArrayDocuments([tokens, …])"
    )
