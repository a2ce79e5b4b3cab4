"""Documents of which a part was trained already: what is left of an epoch, to be packed anew."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.rows.documents import Documents, Pieces
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.table import Segments

__all__ = ["UnreadDocuments", "numbers_of", "origin"]

Ints = NDArray[np.int64]


class UnreadDocuments:
    """What the rows of an epoch from one on still have to train (see `Documents`).

    Each is a range of tokens of a document: its first token is there as context, the others are
    targets that no row before trained. First come the ranges in the rest of the block that was
    begun, then the documents of the blocks that were not, whole and worked out when they are
    asked for: however many there are, they take no memory.

    Args:
        rows: the rows they are left of.
        first: the first row that was not read.
    """

    def __init__(self, rows: PackedRows, first: int) -> None:
        self.left_of = rows.documents[0]
        following, spans = rows.unread_blocks(first)
        segments = rows.segments(np.arange(first, following))
        whole = rows.settings.strategy == "crop"  # its rows begin documents, and drop their rest
        self._ranges = _ranges(segments, self.left_of, whole)
        self._planner, self._first = rows.planner, spans[:, 0]
        self._ends = np.cumsum(spans[:, 1]) + len(self._ranges)
        self._begins = self._ends - spans[:, 1]
        self.name = f"{self.left_of.name}@{first}"
        facts = {**rows.planner.key(), "first": first}
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.masked, self.dtype = self.left_of.masked, self.left_of.dtype
        self.store = self.left_of.store
        self.lengths: Any = _Lengths(self)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else len(self._ranges)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """The documents that these are left of, and their tokens `[start, stop)` there."""
        found = np.zeros((3, len(numbers)), np.int64)
        begun = np.flatnonzero(numbers < len(self._ranges))
        found[:, begun] = self._ranges[numbers[begun]].T
        later = np.flatnonzero(numbers >= len(self._ranges))
        block = np.searchsorted(self._ends, numbers[later], side="right")
        places = self._first[block] + numbers[later] - self._begins[block]
        found[0, later] = self._planner.dealt_at(places)
        found[2, later] = self.left_of.lengths[found[0, later]]
        return found[0], found[1], found[2]

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        number = np.array([range(len(self))[index]])
        document, start, stop = (int(value[0]) for value in self.locate(number))
        return {name: array[start:stop] for name, array in self.left_of[document].items()}

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        document, start, _ = self.locate(documents)
        return self.left_of.tokens(document, start + starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        document, start, _ = self.locate(documents)
        return self.left_of.masks(document, start + starts, counts)

    def of(self, documents: Ints, starts: Ints) -> tuple[Documents, Ints, Ints]:
        """The documents they are left of, which, and at which token of it."""
        document, start, _ = self.locate(documents)
        return self.left_of, document, start + starts

    def numbers_of(self, document: int) -> list[int]:
        """The ranges here that are left of a document."""
        begun = np.flatnonzero(self._ranges[:, 0] == document).tolist()
        place = self._planner.place(document)
        block = int(np.searchsorted(self._first, place, side="right")) - 1
        if block >= 0:
            number = int(self._begins[block]) + place - int(self._first[block])
            begun += [number] if number < self._ends[block] else []
        return begun


class _Lengths:
    """`lengths[numbers]` and `np.asarray(lengths)`, as of an array that is not there."""

    def __init__(self, documents: UnreadDocuments) -> None:
        self.left_of = documents

    def __len__(self) -> int:
        return len(self.left_of)

    def __getitem__(self, numbers: ArrayLike) -> NDArray[np.uint32]:
        given = np.asarray(numbers)
        _, start, stop = self.left_of.locate(given.reshape(-1).astype(np.int64))
        return (stop - start).astype(np.uint32).reshape(given.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or np.uint32, copy=bool(copy))


def origin(documents: Documents, number: Ints, start: Ints) -> tuple[Documents, Ints, Ints]:
    """The source that documents are of, however often it was packed anew, and where in it."""
    while isinstance(documents, UnreadDocuments):
        documents, number, start = documents.of(number, start)
    return documents, number, start


def numbers_of(documents: Documents, number: int) -> list[int]:
    """What `origin` undoes: all that is left of a document of the source."""
    if not isinstance(documents, UnreadDocuments):
        return [number]
    inner = numbers_of(documents.left_of, number)
    return [each for one in inner for each in documents.numbers_of(one)]


def _ranges(segments: Segments, documents: Documents, whole: bool) -> Ints:
    """(ranges, 3): document, start and stop of the tokens left, neighbouring segments as one."""
    lengths = documents.lengths[segments.document].astype(np.int64)
    start = segments.start + segments.lead
    stop = lengths if whole else np.minimum(segments.start + segments.slots + 1, lengths)
    order = np.lexsort((start, segments.document))
    order = order[start[order] + 1 < stop[order]]
    document, start, stop = segments.document[order], start[order], stop[order]
    goes_on = (document[1:] == document[:-1]) & (start[1:] == stop[:-1] - 1)
    first = np.append(0, np.flatnonzero(~goes_on) + 1)[: len(order)]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return np.stack([document[first], start[first], stop[last]], axis=1)
