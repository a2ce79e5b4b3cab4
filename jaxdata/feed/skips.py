"""Rows that are never delivered, and how the others count on without them.

A *place* is the number of a row among those that are not skipped: batches are consecutive places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError

__all__ = ["Skips", "check_skips"]

Ints = NDArray[np.int64]
Range = tuple[int, int, int]


class Skips:
    """Ranges of rows that are left out.

    Args:
        ranges: `(a, b)` leaves out rows `[a, b)`; `(a, b, since)` likewise, but rows before
            `since` had been delivered when that was asked for, and stay where they were.

    Lookups take O(log ranges).

    >>> skips = Skips([(2, 4)])
    >>> skips.place(5), skips.rows(np.arange(4)).tolist(), skips.before(10)
    (3, [0, 1, 4, 5], 2)
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        given = [(r[0], r[1], max(r[0], r[-1] if len(r) > 2 else 0)) for r in ranges]
        whole = _merged([(a, b) for a, b, since in given if since <= a])
        late = [one for one in set(given) if one[2] > one[0]]
        self._ranges: list[Range] = [(a, b, a) for a, b in whole]
        for one in sorted(late, key=lambda r: (r[2], r[0] - r[1])):
            if not any(_covers(other, one) for other in self._ranges):
                self._ranges.append(one)
        gaps = np.array(_merged([(since, b) for _, b, since in self._ranges]), np.int64)
        self._begin, self._end = gaps.reshape(-1, 2).T
        self._gone = np.append(0, np.cumsum(self._end - self._begin))  # rows in the first k gaps

    @property
    def ranges(self) -> list[list[int]]:
        """What it was made of, in its shortest form: plain lists for the state."""
        return [[a, b] if since == a else [a, b, since] for a, b, since in sorted(self._ranges)]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The rows that are left out, as disjoint ranges in order."""
        return list(zip(self._begin.tolist(), self._end.tolist(), strict=True))

    def before(self, row: int) -> int:
        """How many rows before `row` are left out."""
        gap = int(np.searchsorted(self._begin, row))
        partly = max(0, int(self._end[gap - 1]) - row) if gap else 0
        return int(self._gone[gap]) - partly

    def place(self, row: int) -> int:
        """How many rows before `row` are not left out."""
        return row - self.before(row)

    def rows(self, places: Ints) -> Ints:
        """The rows at `places`; int64, of their shape."""
        if not len(self._begin):
            return places
        gap = np.searchsorted(self._begin - self._gone[:-1], places, side="right")
        return np.asarray(places + self._gone[gap], np.int64)

    def skipped(self, total: int) -> Ints:
        """The rows before `total` that are left out, in order; int64 (rows,)."""
        return np.concatenate(
            [np.empty(0, np.int64), *(np.arange(a, min(b, total)) for a, b in self.gaps)]
        )

    def joined(self, ranges: Iterable[Sequence[int]], row: int) -> Skips:
        """These and further `ranges`, asked for when all before `row` was delivered."""
        return Skips([*self._ranges, *((a, b, row) for a, b in ranges)])

    def replayed(self, row: int) -> Skips:
        """The same ranges where everything from `row` on is delivered again."""
        return Skips([(a, b, min(since, row)) for a, b, since in self._ranges])


def check_skips(given: Any, total: int) -> list[tuple[int, int]]:
    """`skip_rows` as a user gives it: pairs `(a, b)` with `0 <= a < b <= total`."""
    try:
        ranges = [(int(a), int(b)) for a, b in given]
        whole = all(pair == tuple(each) for pair, each in zip(ranges, given, strict=True))
    except (TypeError, ValueError):
        ranges, whole = [], False
    if not whole:
        raise InputError(f"skip_rows={given!r}: expected pairs of rows, like [(4000, 4800)]")
    for a, b in ranges:
        if not 0 <= a < b <= total:
            raise InputError(
                f"cannot skip rows ({a}, {b}): expected (a, b) with 0 <= a < b <= {total}, the "
                "number of rows; b itself is not skipped"
            )
    return ranges


def _covers(one: Range, other: Range) -> bool:
    return one[0] <= other[0] and other[1] <= one[1] and one[2] <= other[2]


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint ranges in order that hold the same rows."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
