"""Ranges of tokens in documents: merged, and cut out, so that pieces of the documents are left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyInts, Ints, expand


class TokenRanges(NamedTuple):
    """Ranges of tokens in documents; (ranges,) each, in any order, overlapping or not."""

    document: Ints
    start: Ints
    stop: Ints
    reason: AnyInts
    """number in the view's `reasons`"""
    first: Ints
    """(ranges, 3) where the same tokens stay: number in the view's `survivors` (-1: nowhere, or
    unknown), document and token there (-1: not by tokens)"""

    @classmethod
    def of(
        cls, document: Ints, start: Ints, stop: Ints, *, reason: int = 0, first: Ints | None = None
    ) -> TokenRanges:
        """Ranges of one reason."""
        one = np.full(len(document), reason, np.uint8)
        nowhere = np.full((len(document), 3), -1)
        return cls(document, start, stop, one, nowhere if first is None else first)

    @classmethod
    def join(cls, parts: Iterable[TokenRanges]) -> TokenRanges:
        """The ranges of all parts."""
        return cls(*map(np.concatenate, zip(NO_RANGES, *parts, strict=True)))

    def take(self, chosen: Ints | NDArray[np.bool_]) -> TokenRanges:
        """Some of the ranges."""
        columns: Iterable[Any] = (each[chosen] for each in self)
        return TokenRanges(*columns)

    def merged(self, kept: AnyInts, lengths: NDArray[np.uint32], *, least: int = 1) -> TokenRanges:
        """Those of documents that are `kept` (ascending), ascending and apart.

        Where two of a document meet they are one, with the reason of the first. What is left
        before, between and after them has at least so many tokens: less belongs to them, too.

        >>> ranges = (np.array(each) for each in ([3, 3, 1], [2, 0, 0], [9, 2, 5]))
        >>> found = TokenRanges.of(*ranges).merged(
        ...     np.array([0, 3]), np.array([9, 9, 9, 7]))
        >>> found.document.tolist(), found.start.tolist(), found.stop.tolist()
        ([3], [0], [7])
        """
        at = np.searchsorted(kept, self.document.astype(kept.dtype))
        there = kept.take(at, mode="clip") == self.document if len(kept) else at < 0
        found = self.take(there)
        found = found.take(np.lexsort((found.start, found.document)))
        found = found.take(found.start < lengths[found.document])  # beyond the end is none
        length = lengths[found.document].astype(np.int64)
        stop = np.where(found.stop > length - least, length, found.stop)
        start = np.where(found.start < least, 0, found.start)
        # On one line, document after document, with room between them: then stops only rise.
        own = np.unique(found.document, return_inverse=True)[1]
        before = own * (int(lengths.max(initial=0)) + least)
        reach: Ints = np.maximum.accumulate(before + stop) if len(before) else before
        heads = np.flatnonzero(np.append(True, (before + start)[1:] > reach[:-1] + least - 1))
        heads = heads[: len(before)]
        tails = np.append(heads[1:], len(before))[: len(heads)] - 1
        return found._replace(start=start).take(heads)._replace(stop=reach[tails] - before[tails])


def _none() -> Ints:
    return np.empty(0, np.int64)


NO_RANGES = TokenRanges.of(_none(), _none(), _none())


class Pieces(NamedTuple):
    """What is left of documents; int64 (pieces,) each, in order."""

    document: Ints
    start: Ints
    stop: Ints


def pieces(documents: AnyInts, lengths: NDArray[np.uint32], cut: TokenRanges) -> Pieces:
    """What is left of some documents between ranges that are ascending and apart.

    >>> cut = TokenRanges.of(*map(np.array, ([3, 3], [0, 5], [2, 6])))
    >>> [each.tolist() for each in pieces(np.array([1, 3]), np.array([9, 9, 9, 8]), cut)]
    [[1, 3, 3], [0, 2, 6], [9, 5, 8]]
    """
    numbers = documents.astype(np.int64)
    first, last = (np.searchsorted(cut.document, numbers, side) for side in ("left", "right"))
    which, number = expand(last - first + 1)
    after = first[which] + number  # the range that ends each piece, but the last of a document
    stops, starts = np.append(cut.stop, 0), np.append(cut.start, 0)
    start = np.where(number == 0, 0, stops[after - 1])
    stop = np.where(after == last[which], lengths[numbers[which]], starts[after])
    left = start < stop
    return Pieces(numbers[which[left]], start[left], stop[left])


def outside(ranges: TokenRanges, lengths: NDArray[np.uint32], cut: TokenRanges) -> TokenRanges:
    """The parts of ranges that are not cut out; both are ascending and apart."""
    own, room = np.unique(ranges.document), int(lengths.max(initial=0)) + 1
    left = pieces(own, lengths, cut)
    place, piece = (room * np.searchsorted(own, each.document) for each in (ranges, left))
    first = np.searchsorted(piece + left.stop, place + ranges.start, "right")
    last = np.searchsorted(piece + left.start, place + ranges.stop, "left")
    which, number = expand(np.maximum(last - first, 0))
    at = first[which] + number
    found = ranges.take(which)
    return found._replace(
        start=np.maximum(found.start, left.start[at]), stop=np.minimum(found.stop, left.stop[at])
    )
