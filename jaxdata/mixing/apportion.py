"""Dividing a sequence of rows among sources by exact shares, with random access.

A Huffman-shaped tree of two-way splits. At each node row *r* goes left when `floor(r p + 1/2)`
grows from *r* to *r + 1*, so the count on the left is always within half a row of `r p`; in a
Huffman tree heavy branches do not follow each other, and the halves add up to less than two rows
at any leaf. A row is found in O(depth), a batch of rows in the same number of numpy passes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import Ints

_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_TOP_BIT = np.uint64(63)


class Apportionment:
    """Shares of sources: only proportions count, at least one is above 0, and 0 gets no rows.

    >>> tree = Apportionment([Fraction(2), Fraction(1), Fraction(0)])
    >>> source, rank = tree.select(np.arange(6))
    >>> source.tolist(), rank.tolist(), tree.counts(6)
    ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3], [4, 2, 0])
    """

    def __init__(self, shares: Sequence[Fraction] | Sequence[int]) -> None:
        self._size = len(shares)
        tie = count()
        # A node is a leaf ~source, or the number of a split, as the arrays below hold them.
        numbers = enumerate(whole_numbers(shares))  # quicker to add and compare than fractions
        heap = [(share, next(tie), ~source) for source, share in numbers if share > 0]
        heapq.heapify(heap)
        children: list[tuple[int, int]] = []
        fractions: list[int] = []
        while len(heap) > 1:
            light, heavy = heapq.heappop(heap), heapq.heappop(heap)
            total = light[0] + heavy[0]
            children.append((heavy[2], light[2]))
            fractions.append(min(_rounded(heavy[0] << 64, total), 2**64 - 1))
            heapq.heappush(heap, (total, next(tie), len(children) - 1))
        self._root = heap[0][2]
        self._children = np.asarray(children, np.int64).reshape(-1, 2)
        self._fractions = np.asarray(fractions, np.uint64)

    def select(self, rows: Ints) -> tuple[Ints, Ints]:
        """The source of each row, and the number of earlier rows of that source; int64."""
        node = np.full(len(rows), self._root, np.int64)
        rank = rows.astype(np.uint64)
        active = np.flatnonzero(node >= 0)
        while active.size:
            splits, ranks = node[active], rank[active]
            before = _heavy_count(ranks, self._fractions[splits])
            after = _heavy_count(ranks + np.uint64(1), self._fractions[splits])
            light = (after == before).astype(int)
            rank[active] = np.where(light, ranks - before, before)
            node[active] = self._children[splits, light]
            active = active[node[active] >= 0]
        return ~node, rank.astype(np.int64)

    def rows_of(self, source: int, ranks: Ints) -> Ints:
        """The inverse of `select`: the row that has each rank of a source; int64 (ranks,)."""
        path, node = list[tuple[int, bool]](), ~source
        while node != self._root:
            above, side = np.argwhere(self._children == node)[0].tolist()
            path.append((above, bool(side)))
            node = above
        rows = ranks.astype(object)  # of any size
        for above, light in path:
            rows = _row_of_rank(rows, int(self._fractions[above]), light)
        return rows.astype(np.int64)

    def first_beyond(self, limits: Sequence[int]) -> tuple[int, int]:
        """The first row that is one more of its source than its limit, and that source."""
        firsts: list[tuple[int, int]] = []

        def first(node: int) -> tuple[int, int]:
            return (limits[~node], ~node) if node < 0 else firsts[node]

        splits = zip(self._children.tolist(), self._fractions.tolist(), strict=True)
        for (left, right), heavy in splits:  # below a split are earlier ones
            on_left, on_right = first(left), first(right)
            of_left = _row_of_rank(on_left[0], heavy, False), on_left[1]
            firsts.append(min(of_left, (_row_of_rank(on_right[0], heavy, True), on_right[1])))
        return first(self._root)

    def counts(self, rows: int) -> list[int]:
        """Rows of each source among the first `rows`."""
        counts = [0] * self._size
        pending = [(self._root, rows)]
        while pending:
            node, here = pending.pop()
            if node < 0:
                counts[~node] = here
                continue
            heavy = (here * int(self._fractions[node]) + 2**63) >> 64
            left, right = self._children[node].tolist()
            pending += [(left, heavy), (right, here - heavy)]
        return counts


def whole_numbers(shares: Sequence[Fraction] | Sequence[int]) -> list[int]:
    """Whole numbers in the same proportions.

    >>> whole_numbers([Fraction(1, 2), Fraction(1, 3), Fraction(0)])
    [3, 2, 0]
    """
    scale = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (scale // share.denominator) for share in shares]


def _rounded(number: int, divisor: int) -> int:
    """The nearest whole number to a quotient; the even one, halfway between two."""
    quotient, rest = divmod(number, divisor)
    return quotient + (2 * rest + quotient % 2 > divisor)


def _row_of_rank(rank: Any, heavy: int, light: bool) -> Any:
    """The row of a split that is this rank of one of its sides; a whole number or an array."""
    if light:
        return (rank * 2**64 + 2**63) // (2**64 - heavy)
    return -((2**63 - (rank + 1) * 2**64) // heavy) - 1


def _heavy_count(rows: NDArray[np.uint64], fraction: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`floor(rows * fraction / 2^64 + 1/2)` by a 64 x 64 -> 128 bit product in halves."""
    a, b = rows >> _HALF_WORD, rows & _LOW
    c, d = fraction >> _HALF_WORD, fraction & _LOW
    middle = a * d + ((b * d) >> _HALF_WORD)
    other = b * c + (middle & _LOW)
    high = a * c + (middle >> _HALF_WORD) + (other >> _HALF_WORD)
    total: NDArray[np.uint64] = high + ((rows * fraction) >> _TOP_BIT)
    return total
