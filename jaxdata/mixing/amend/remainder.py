"""The untrained remainder of an epoch, as documents to repack."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.documents.base import Documents, Gathered, SideArray, page_ends, side_arrays
from jaxdata.documents.kept import KeptDocuments
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.ragged import Ints
from jaxdata.rows.table import Segments


class RemainingDocuments:
    """The untrained part of an epoch, from row `first` on (see `Documents`).

    Each is a range of tokens of a document: its first token is context, the others are targets
    that were not trained before. The ranges in the rest of a begun block come first, then whole
    documents of the other blocks, which are located on demand and take no memory.
    """

    def __init__(self, rows: PackedRows, first: int) -> None:
        self.source = rows.documents[0]
        rest, spans = rows.remaining(first)
        segments = rows.segments(rest)
        drops_rest = not STRATEGIES[rows.settings.strategy].keeps_all
        self._ranges = _ranges(segments, self.source, drops_rest)
        self._order, self._first = rows.planner.order, spans[:, 0]
        self._ends = np.cumsum(spans[:, 1]) + len(self._ranges)
        self._begins = self._ends - spans[:, 1]
        self.name = f"{self.source.name}@{first}"
        # Lanes decide which rows come before `first`.
        facts = {**rows.planner.key(), "first": first, "lanes": rows.lanes}
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.masked, self.dtype = self.source.masked, self.source.dtype
        self.store = self.source.store
        self.lengths: Any = _Lengths(self)

    def page_ends(self, size: int) -> Ints:
        """See `Documents`."""
        return page_ends(self, size)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else len(self._ranges)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """The documents of the source, and the tokens `[start, stop)` of them."""
        found = np.zeros((3, len(numbers)), np.int64)
        begun = np.flatnonzero(numbers < len(self._ranges))
        found[:, begun] = self._ranges[numbers[begun]].T
        later = np.flatnonzero(numbers >= len(self._ranges))
        block = np.searchsorted(self._ends, numbers[later], side="right")
        positions = self._first[block] + numbers[later] - self._begins[block]
        found[0, later] = self._order.documents_at(positions)
        found[2, later] = self.source.lengths[found[0, later]]
        return found[0], found[1], found[2]

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        number = np.array([range(len(self))[index]])
        document, start, stop = (int(value[0]) for value in self.locate(number))
        return {name: array[start:stop] for name, array in self.source[document].items()}

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        document, start, _ = self.locate(documents)
        return self.source.tokens(document, start + starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        document, start, _ = self.locate(documents)
        return self.source.masks(document, start + starts, counts)

    @property
    def side(self) -> dict[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        arrays = side_arrays(self.source).items()
        return {name: side.through(lambda *given: self.of(*given)[1:]) for name, side in arrays}

    def of(self, documents: Ints, starts: Ints) -> tuple[Documents, Ints, Ints]:
        """The source, and the documents and tokens in it."""
        document, start, _ = self.locate(documents)
        return self.source, document, start + starts

    def numbers_of(self, document: int) -> list[int]:
        """The ranges of a document of the source."""
        begun = np.flatnonzero(self._ranges[:, 0] == document).tolist()
        position = self._order.position(document)
        block = int(np.searchsorted(self._first, position, side="right")) - 1
        if block >= 0:
            number = int(self._begins[block]) + position - int(self._first[block])
            begun += [number] if number < self._ends[block] else []
        return begun


class _Lengths:
    """`lengths[numbers]` and `np.asarray(lengths)` of an array that is computed on demand."""

    def __init__(self, documents: RemainingDocuments) -> None:
        self.source = documents

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, numbers: ArrayLike) -> NDArray[np.uint32]:
        given = np.asarray(numbers)
        _, start, stop = self.source.locate(given.reshape(-1).astype(np.int64))
        return (stop - start).astype(np.uint32).reshape(given.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or np.uint32, copy=bool(copy))


def origin(documents: Documents, number: Ints, start: Ints) -> tuple[Documents, Ints, Ints]:
    """The original source of documents, however often it was repacked, and where in it."""
    while isinstance(documents, RemainingDocuments | KeptDocuments):
        documents, number, start = documents.of(number, start)
    return documents, number, start


def numbers_of(documents: Documents, number: int) -> list[int]:
    """The inverse of `origin`: all remaining ranges of a document of the source."""
    if not isinstance(documents, RemainingDocuments):
        return [number]
    inner = numbers_of(documents.source, number)
    return [each for one in inner for each in documents.numbers_of(one)]


def _ranges(segments: Segments, documents: Documents, drops_rest: bool) -> Ints:
    """(ranges, 3): document, start and stop of untrained tokens; adjacent segments are merged."""
    lengths = documents.lengths[segments.document].astype(np.int64)
    start = segments.start + segments.context
    stop = lengths if drops_rest else np.minimum(segments.start + segments.slots + 1, lengths)
    order = np.lexsort((start, segments.document))
    order = order[start[order] + 1 < stop[order]]
    document, start, stop = segments.document[order], start[order], stop[order]
    goes_on = (document[1:] == document[:-1]) & (start[1:] == stop[:-1] - 1)
    first = np.append(0, np.flatnonzero(~goes_on) + 1)[: len(order)]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return np.stack([document[first], start[first], stop[last]], axis=1)
