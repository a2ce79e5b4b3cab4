"""Rows that are never delivered, and the ordinals of the others.

The *ordinal* of a row is its number among those that are not skipped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxdata.errors import InputError
from jaxdata.ragged import Ints
from jaxdata.scalars import is_whole, plain

Range = tuple[int, int, int]


class Skips:
    """Ranges of rows that are never delivered.

    Args:
        ranges: `(a, b)` skips rows `[a, b)`; `(a, b, since)` skips only those from `since` on:
            the others had been delivered when the range was asked for, and keep their ordinals.

    Lookups take O(log ranges).

    >>> skips = Skips([(2, 4)])
    >>> skips.ordinal(5), skips.rows(np.arange(4)).tolist(), skips.before(10)
    (3, [0, 1, 4, 5], 2)
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        given = [(r[0], r[1], max(r[0], r[-1] if len(r) > 2 else 0)) for r in ranges]
        whole = _merged([(a, b) for a, b, since in given if since <= a])
        late = [one for one in set(given) if one[2] > one[0]]
        self._ranges: list[Range] = [(a, b, a) for a, b in whole] + _widest(whole, late)
        self.gaps = _merged([(since, b) for _, b, since in self._ranges])
        """the skipped rows, as disjoint ranges in order"""
        self._begin, self._end = np.array(self.gaps, np.int64).reshape(-1, 2).T
        self._gone = np.append(0, np.cumsum(self._end - self._begin))  # rows in the first k gaps

    @property
    def ranges(self) -> list[list[int]]:
        """The ranges it was made of, in their shortest form: plain lists for the state."""
        return [[a, b] if since == a else [a, b, since] for a, b, since in sorted(self._ranges)]

    def before(self, row: int) -> int:
        """The number of skipped rows before `row`."""
        gap = int(np.searchsorted(self._begin, row))
        partly = max(0, int(self._end[gap - 1]) - row) if gap else 0
        return int(self._gone[gap]) - partly

    def ordinal(self, row: int) -> int:
        """The number of rows before `row` that are not skipped."""
        return row - self.before(row)

    def rows(self, ordinals: Ints) -> Ints:
        """The rows at `ordinals`; int64, of their shape."""
        gap = np.searchsorted(self._begin - self._gone[:-1], ordinals, side="right")
        return np.asarray(ordinals + self._gone[gap], np.int64)

    def joined(self, ranges: Iterable[Sequence[int]], row: int) -> Skips:
        """These ranges and more, asked for when all rows before `row` were delivered."""
        return Skips([*self._ranges, *((a, b, row) for a, b in ranges)])

    def replayed(self, row: int) -> Skips:
        """The same ranges for a run that delivers everything from `row` on again."""
        return Skips([(a, b, min(since, row)) for a, b, since in self._ranges])


def check_skips(given: Any, total: int) -> list[tuple[int, int]]:
    """Check `skip_rows` as a user gives it: pairs `(a, b)` with `0 <= a < b <= total`."""
    ranges = whole_pairs(given)
    if ranges is None:
        raise InputError(f"skip_rows={given!r}: expected pairs of rows, like [(4000, 4800)]")
    for a, b in ranges:
        if not 0 <= a < b <= total:
            raise InputError(
                f"cannot skip rows ({a}, {b}): expected (a, b) with 0 <= a < b <= {total}, the "
                "number of rows; b itself is not skipped"
            )
    return ranges


def whole_pairs(given: Any) -> list[tuple[int, int]] | None:
    """Pairs of whole numbers, as integers; None if they are anything else."""
    try:
        pairs = [(a, b) for a, b in given]
    except (TypeError, ValueError):
        return None
    whole = all(is_whole(plain(number)) for pair in pairs for number in pair)
    return [(int(a), int(b)) for a, b in pairs] if whole else None


def _widest(whole: list[tuple[int, int]], late: list[Range]) -> list[Range]:
    """The late ranges that lie in no whole one, and in no late one since an earlier row."""
    found: list[Range] = []
    begins, ends = [a for a, _ in whole], [b for _, b in whole]  # of those in no other, in order
    for a, b, since in sorted(late, key=lambda r: (r[2], r[0] - r[1])):
        at = bisect_right(begins, a)
        if not at or ends[at - 1] < b:
            found.append((a, b, since))
            first, stop = bisect_left(begins, a), bisect_right(ends, b)
            begins[first:stop], ends[first:stop] = [a], [b]
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same rows as disjoint ranges in order."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
