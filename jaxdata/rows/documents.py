"""Documents of one source: lengths for the planner, ranges of tokens for the reader.

`Documents` is the contract that packing needs, `ArrayDocuments` holds it in memory, and
`stored` reads it from disk. All are grain `RandomAccessDataSource`s.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.errors import InputError
from jaxdata.format.storage import Store, Views

__all__ = ["ArrayDocuments", "Documents", "Pieces", "RangedDocuments", "as_documents"]

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Bytes of some ranges: views which, end to end, are the ranges in their order."""

    views: Views
    range: Ints
    """(views,) number of the range that each belongs to; never falls"""

    @classmethod
    def cut(cls, joined: NDArray[Any], counts: Ints) -> Pieces:
        """Views of an array that holds ranges of `counts` elements, end to end."""
        views = Views.cut(joined.data.cast("B"), counts * joined.itemsize)
        return cls(views, np.arange(len(counts)))

    def followed(self, ranges: Ints, filler: bytes) -> Pieces:
        """With `filler` at the end of some of the ranges."""
        at = self.range.searchsorted(ranges, side="right")
        views = self.views.inserted(at, np.full(len(at), len(filler)), filler)
        return Pieces(views, np.insert(self.range, at, ranges))


class Documents(Protocol):
    """Documents that can be packed: the contract of every source.

    A document is a run of tokens ending with EOD (foreign ones may lack it). Nothing but
    `lengths` is needed to plan; `tokens` and `masks` read only the ranges they are asked for.
    """

    @property
    def name(self) -> str:
        """Names the source in seeds: `"<split>/<source>"`."""
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
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens: an unsigned integer of 16 or 32 bits."""
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
        """`{"tokens": (n,) integers}` and, where masked, `"loss_mask"`: (n,) bool."""
        ...

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """Tokens `[starts[k], starts[k] + counts[k])` of `documents[k]`, for every *k*.

        As bytes of `dtype`, little-endian.
        """
        ...

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """Stored masks of the same ranges, a byte each (1: has loss when it is a target)."""
        ...


class RangedDocuments(ABC):
    """Documents that are read as ranges: whole ones, and one range, by way of `tokens`."""

    masked: bool
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def lengths(self) -> NDArray[Any]:
        """See `Documents`."""

    @abstractmethod
    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""

    @abstractmethod
    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        item: dict[str, NDArray[Any]] = {"tokens": self.read(index)}
        if self.masked:
            mask = self._range(self.masks, np.dtype(np.uint8), index, 0, None)
            item["loss_mask"] = mask.astype(bool)
        return item

    def read(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Tokens `[start, stop)` of one document; reads no more of it than that."""
        return self._range(self.tokens, self.dtype.newbyteorder("<"), index, start, stop)

    def _range(
        self, method: Any, dtype: np.dtype[Any], index: int, start: int, stop: int | None
    ) -> NDArray[Any]:
        document = range(len(self))[index]
        start, stop, _ = slice(start, stop).indices(int(self.lengths[document]))
        one = (np.array([value]) for value in (document, start, max(stop - start, 0)))
        return np.frombuffer(bytearray(method(*one).views.join()), dtype)


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
    def dtype(self) -> np.dtype[Any]:
        """The smaller unsigned integer that holds every token."""
        largest = max((int(document.max(initial=0)) for document in self._tokens), default=0)
        return np.dtype(np.uint16 if largest < 2**16 else np.uint32)

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

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See :class:`Documents`."""
        return self._slices(self._bytes, self.dtype.itemsize, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See :class:`Documents`."""
        return self._slices([m.data for m in self._masks], 1, documents, starts, counts)

    @cached_property
    def _bytes(self) -> list[memoryview]:
        little = self.dtype.newbyteorder("<")
        return [memoryview(document.astype(little).tobytes()) for document in self._tokens]

    def _slices(
        self, buffers: list[memoryview], item: int, documents: Ints, starts: Ints, counts: Ints
    ) -> Pieces:
        views = Views(buffers, documents, starts * item, (starts + counts) * item)
        return Pieces(views, np.arange(len(documents)))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayDocuments, (self._tokens, self._masks if self.masked else None, self.name)


def as_documents(docs: Any) -> Documents:
    """Take anything that can be packed; raises InputError where it lacks `lengths`."""
    if hasattr(docs, "lengths") and hasattr(docs, "tokens"):
        documents: Documents = docs
        return documents
    if hasattr(docs, "lengths") and hasattr(docs, "__getitem__"):
        from jaxdata.rows.adapted import AdaptedDocuments

        return AdaptedDocuments(docs)
    raise InputError(
        f"cannot pack a {type(docs).__name__}: expected a source with lengths, as "
        "dataset.source(split, name) gives it, jaxdata.ArrayDocuments([tokens, …]), or an object "
        "with `lengths` whose items are arrays of tokens"
    )
