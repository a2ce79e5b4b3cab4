"""Learning the merges of byte-level BPE from words and how often they occur.

All words lie in one array of symbols. Of each pair of neighbours it is known how often it occurs
and at which symbols; a merge changes only those, and the pairs beside them. The most frequent pair
is merged, of equal ones that of the smallest ids: the merges are those of the `tokenizers` library,
whose trainer counts in 32 bits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Symbols = NDArray[np.int32]

_EDGE, _GONE = -1, -2  # before, between and after words; the right one of a merged pair
PRINTABLE = frozenset((*range(33, 127), *range(161, 173), *range(174, 256)))
BYTES = (*sorted(PRINTABLE), *sorted({*range(256)} - PRINTABLE))
"""The bytes in the order of their ids: as GPT-2 has them, printable ones first."""


def learn_merges(words: Mapping[bytes, int], count: int) -> list[tuple[int, int]]:
    """The pairs of ids to merge, in their order; fewer where no two symbols are left to merge.

    The *n*-th merge makes the id 256 + *n*; the ids before are the `BYTES`.

    >>> learn_merges({b"abab": 2, b"ba": 1}, 9)
    [(64, 65), (256, 256), (65, 64)]
    """
    pairs = _Pairs(words)
    merges: list[tuple[int, int]] = []
    while len(merges) < count and (found := pairs.most_frequent()) is not None:
        left, right = found >> 32, found & 0xFFFFFFFF
        pairs.merge(left, right, 256 + len(merges))
        merges.append((left, right))
    return merges


class _Pairs:
    """Words as symbols, and the pairs of neighbours by key: the left id << 32 | the right one."""

    def __init__(self, words: Mapping[bytes, int]) -> None:
        self._symbols, self._weights = _laid_out(words)
        size = len(self._symbols)
        self._next = np.arange(1, size + 1, dtype=np.int32)
        self._previous = np.arange(-1, size - 1, dtype=np.int32)
        self._counts: dict[int, int] = {}
        self._places: dict[int, Symbols] = {}
        self._heap: list[tuple[int, int]] = []
        inside = (self._symbols[:-1] >= 0) & (self._symbols[1:] >= 0)
        first = np.flatnonzero(inside).astype(np.int32)
        self._add(_key(self._symbols[first], self._symbols[first + 1]), first)

    def most_frequent(self) -> int | None:
        """The key of the pair to merge next."""
        while self._heap:
            count, key = heapq.heappop(self._heap)
            now = self._counts.get(key, 0)
            if now == -count:
                return key
            if now > 0:
                heapq.heappush(self._heap, (-now, key))
        return None

    def merge(self, left: int, right: int, merged: int) -> None:
        """Put one symbol in the place of two, wherever they are neighbours."""
        first, second = self._found(left, right)
        before, after = self._previous[first], self._next[second]
        old_before, old_after = self._symbols[before], self._symbols[after]
        has_before, has_after = old_before >= 0, old_after >= 0
        has_before[1:] &= before[1:] != second[:-1]  # two of them in a row: one pair between them
        self._drop(_key(old_before[has_before], left), first[has_before])
        self._drop(_key(right, old_after[has_after]), first[has_after])

        self._symbols[first], self._symbols[second] = merged, _GONE
        self._next[first], self._previous[after] = after, first
        keys = _key(old_before[has_before], merged), _key(merged, self._symbols[after[has_after]])
        self._add(np.concatenate(keys), np.concatenate([before[has_before], first[has_after]]))

    def _found(self, left: int, right: int) -> tuple[Symbols, Symbols]:
        """Where the two symbols of a pair are, without overlaps, ascending."""
        key = left << 32 | right
        del self._counts[key]
        first = self._places.pop(key)
        first = first[self._symbols[first] == left]
        second = self._next[first]
        alive = self._symbols[second] == right
        if left == right:
            alive &= _every_other(np.append(False, first[1:] == second[:-1]))
        return first[alive], second[alive]

    def _drop(self, keys: Ints, weighed_at: Symbols) -> None:
        """Pairs that are no more."""
        if len(keys):
            _, _, keys, counts = _grouped(keys, self._weights[weighed_at])
            for key, count in zip(keys.tolist(), counts, strict=True):
                left = self._counts.pop(key, count) - count  # popped before: what is merged now
                if left:
                    self._counts[key] = left
                else:
                    self._places.pop(key, None)

    def _add(self, keys: Ints, places: Symbols) -> None:
        """Pairs that come to be: all of a key at once, as its newer symbol does."""
        if not len(keys):
            return
        order, edges, keys, counts = _grouped(keys, self._weights[places])
        places = places[order]
        each = zip(keys.tolist(), counts, edges, edges[1:], strict=False)
        for key, count, start, stop in each:
            self._counts[key] = count
            self._places[key] = places[start:stop]
            heapq.heappush(self._heap, (-count, key))


def _laid_out(words: Mapping[bytes, int]) -> tuple[Symbols, Ints]:
    """The symbols of all words with edges between them, and how often each occurs."""
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    raw = np.frombuffer(b"".join(words), np.uint8)
    places = np.arange(1, len(raw) + 1) + np.repeat(np.arange(len(words)), sizes)
    symbols = np.full(len(raw) + len(words) + 1, _EDGE, np.int32)
    symbols[places] = np.argsort(BYTES)[raw]
    weights = np.zeros(len(symbols), np.int64)
    weights[places] = np.repeat(np.fromiter(words.values(), np.int64, len(words)), sizes)
    return symbols, weights


def _key(left: Symbols | int, right: Symbols | int) -> Ints:
    return np.asarray(left, np.int64) << 32 | right


def _grouped(keys: Ints, weights: Ints) -> tuple[Ints, list[int], Ints, list[int]]:
    """An order by key, the edges of its groups, their keys, and the sums of their weights."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)
    sums = np.add.reduceat(weights[order], first).tolist()
    return order, [*first.tolist(), len(order)], keys[first], sums


def _every_other(follows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The first, third, … of each run; `follows` says what continues the run before it."""
    at = np.arange(len(follows))
    begin: Ints = np.maximum.accumulate(np.where(follows, 0, at))
    odd: NDArray[np.bool_] = (at - begin) % 2 == 0
    return odd
