"""The rows of each step: batch sizes, past and future, over the rows that are not skipped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_whole, plain
from jaxdata.base.ragged import Ints


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
        self._since: dict[tuple[int, int], int] = {}
        for a, b, *more in ranges:
            since = max([a, *more])
            self._since[a, b] = min(since, self._since.get((a, b), since))
        self.gaps = _merged([(since, b) for (_, b), since in self._since.items()])
        """the skipped rows, as disjoint ranges in order"""
        self._begin, self._end = np.array(self.gaps, np.int64).reshape(-1, 2).T
        self._gone = np.append(0, np.cumsum(self._end - self._begin))  # rows in the first k gaps

    @property
    def ranges(self) -> list[list[int]]:
        """The ranges that it was made of: plain lists for the state."""
        ranges = sorted(self._since.items())
        return [[a, b] if since == a else [a, b, since] for (a, b), since in ranges]

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
        return Skips([*self.ranges, *((a, b, row) for a, b, *_ in ranges)])

    def replayed(self, row: int) -> Skips:
        """The same ranges for a run that delivers everything from `row` on again."""
        return Skips([(a, b, min(since, row)) for (a, b), since in self._since.items()])


def check_skips(ranges: Iterable[tuple[int, int]], total: int) -> None:
    """Refuse ranges of rows `(a, b)` but those with `0 <= a < b <= total`."""
    for a, b in ranges:
        if not (is_whole(a) and is_whole(b) and 0 <= a < b <= total):
            raise InputError(
                f"cannot skip rows ({a}, {b}): expected (a, b) with 0 <= a < b <= {total}, the "
                "number of rows; b itself is not skipped"
            )


def whole_pairs(given: Any) -> list[tuple[int, int]] | None:
    """Pairs of whole numbers, as integers; None if they are anything else."""
    try:
        pairs = [(a, b) for a, b in given]
    except (TypeError, ValueError):
        return None
    whole = all(is_whole(plain(number)) for pair in pairs for number in pair)
    return [(int(a), int(b)) for a, b in pairs] if whole else None


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same rows as disjoint ranges in order."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


MOST_ROWS = 2**24
"""of a batch"""


class Span(NamedTuple):
    """A global batch: `size` rows of consecutive ordinals."""

    first: int
    """ordinal of its first row"""
    size: int
    section: int = 0
    """number of its section; rows beyond the end of that are padding"""


class BatchSizes:
    """Batch sizes by ordinal: `[(ordinal, batch size from there on), …]`, the first at ordinal 0.

    >>> sizes = BatchSizes([(0, 4), (8, 6)])
    >>> sizes.first(2), sizes.first(3), sizes.step(14), sizes.at(8), sizes.span(1)
    (8, 14, 3, 6, (4, 8))
    """

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        self.points = [(int(ordinal), int(size)) for ordinal, size in points]
        self._begins = [ordinal for ordinal, _ in self.points]

    def at(self, ordinal: int) -> int:
        """Size of the batch that begins at `ordinal`."""
        return self.points[bisect_right(self._begins, ordinal) - 1][1]

    def first(self, step: int) -> int:
        """First ordinal of a step."""
        return self.span(step)[0]

    def span(self, step: int) -> tuple[int, int]:
        """Ordinals `[first, stop)` of a step; fewer than its size where it was cut short."""
        for (begin, size), (end, _) in pairwise(self.points):
            steps = _steps(end - begin, size)
            if step < steps:
                return begin + step * size, min(begin + (step + 1) * size, end)
            step -= steps
        begin, size = self.points[-1]
        return begin + step * size, begin + (step + 1) * size

    def step(self, ordinal: int) -> int:
        """Steps before `ordinal`, an unfinished one included."""
        ends = [begin for begin, _ in self.points[1:]] + [ordinal]
        spans = zip(self.points, ends, strict=True)
        return sum(_steps(max(min(end, ordinal) - begin, 0), size) for (begin, size), end in spans)

    def past(self, ordinal: int) -> list[tuple[int, int]]:
        """The sizes of batches before `ordinal`; at the start, the first size."""
        return [point for point in self.points if point[0] < ordinal] or self.points[:1]

    def continued(self, ordinal: int, ramp: BatchSizes, cuts: Sequence[int] = ()) -> BatchSizes:
        """The same history up to `ordinal`, and the sizes of `ramp` from there on.

        A size of the ramp holds for the batches that begin at its ordinal or after it. A batch
        begins at each of `cuts`, which are ordinals in order.
        """
        points = [point for point in self.points if point[0] < ordinal]
        size = ramp.at(ordinal)
        if not points or points[-1][1] != size or not BatchSizes(points).reaches(ordinal):
            points.append((ordinal, size))
        changes = [*((cut, 0) for cut in cuts), *ramp.points]
        for begin, size in sorted(changes, key=itemgetter(0)):  # a cut first, where both are
            last, each = points[-1]
            if begin > ordinal and not size:
                points += [(begin, each)] * (begin > last)
            elif begin > ordinal and size != each:
                ahead = last + _steps(max(begin - last, 0), each) * each
                begin = min([ahead, *(cut for cut in cuts if cut >= begin)])
                if begin == last:
                    points.pop()
                points.append((begin, size))
        return BatchSizes(points)

    def reaches(self, ordinal: int) -> bool:
        """Whether a batch begins at `ordinal`."""
        return self.first(self.step(ordinal)) == ordinal


class Schedule:
    """The position of a loader, and the rows of its steps, past and future.

    Args:
        total: number of rows.
        ramp: `[(row, batch size of batches that begin there or later), …]`.
        skipped: ranges `(a, b)` of rows that are never delivered.
        drop_remainder: drop a last batch that is not full.
        sections: first rows of the sections, which no batch crosses (see `RowTable.sections`).
    """

    def __init__(
        self,
        total: int,
        ramp: Sequence[tuple[int, int]],
        skipped: Iterable[Sequence[int]] = (),
        drop_remainder: bool = False,
        sections: Sequence[int] = (0,),
    ) -> None:
        self._sections = list(sections)
        self._total, self.ramp, self._drop_remainder = total, list(ramp), drop_remainder
        self.skips = Skips(skipped)
        self._go_to(0, [])

    def _go_to(self, row: int, history: Iterable[Sequence[int]]) -> None:
        """Go to a row, after batches of the sizes in `history`: pairs (row, size)."""
        ordinal = self.skips.ordinal
        self.count = ordinal(self._total)
        """number of rows that are not skipped"""
        self.ends = [*map(ordinal, self._sections[1:]), self.count]
        """ordinals at which the sections end"""
        self._ordinal = ordinal(row)
        points = [(ordinal(begin), size) for begin, size in history]
        past = BatchSizes(point for point in points if point[0] < self._ordinal)
        ramp = BatchSizes((ordinal(begin), size) for begin, size in self.ramp)
        cuts = [end for end in self.ends if end < self.count]
        ended = past.points and self._ordinal == self.count
        self._sizes = past if ended else past.continued(self._ordinal, ramp, cuts)

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self._row(self._ordinal)

    def _row(self, ordinal: int) -> int:
        return int(self.skips.rows(np.array([ordinal]))[0]) if ordinal < self.count else self._total

    @property
    def step(self) -> int:
        """Steps before the next row."""
        return self._sizes.step(self._ordinal)

    @property
    def at_end(self) -> bool:
        """Whether there is no further batch."""
        return next(self.spans(), None) is None

    def __len__(self) -> int:
        ends = self._sizes.step(self.count)
        partial = self._sizes.first(ends) > self.count
        return ends - (partial and self._drop_remainder)

    @property
    def history(self) -> list[list[int]]:
        """The sizes of batches so far, as `[row, size from there on]`."""
        return self._in_rows(self._sizes.past(self._ordinal))

    def _in_rows(self, points: list[tuple[int, int]]) -> list[list[int]]:
        return [[self._row(ordinal), size] for ordinal, size in points]

    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or future, without padding."""
        first, stop = self._sizes.span(step)
        return self.skips.rows(np.arange(first, min(stop, self.count)))

    def span(self, step: int) -> Span:
        """The batch of a step, past or future."""
        first, _ = self._sizes.span(step)
        return Span(first, self._sizes.at(first), bisect_right(self.ends, first))

    def find(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and the row's number in the batch; None if no step has it."""
        ordinal = self.skips.ordinal(row)
        if ordinal >= self.count or self._row(ordinal) != row:
            return None
        step = self._sizes.step(ordinal + 1) - 1
        return (step, ordinal - self._sizes.first(step)) if step < len(self) else None

    def spans(self) -> Iterator[Span]:
        """The batches from here to the end."""
        return _spans(self._sizes, self._ordinal, self.ends, self._drop_remainder)

    def first_row(self, step: int) -> int:
        """The first row of a step; the number of rows for those after the end."""
        return self._row(self._sizes.first(step))

    def resize(self, total: int, sections: Sequence[int]) -> None:
        """Have another number of rows, of which those up to here, and in the making, stay."""
        row, history = self.next_row, self.history
        self._total, self._sections = total, list(sections)
        self._go_to(row, history)

    def advance(self, span: Span) -> None:
        """Record that a batch was delivered."""
        self._ordinal = min(span.first + span.size, self.ends[span.section])

    def seek(self, row: int) -> None:
        """Go to a row; every skip that was ever asked for holds from there on."""
        passed = self._in_rows(self._sizes.points)  # a seek ahead passes future sizes
        self.skips = self.skips.replayed(row)
        self._go_to(row, passed)

    def skip(self, ranges: Iterable[Sequence[int]]) -> None:
        """Never deliver these rows from here on."""
        row, history = self.next_row, self.history
        self.skips = self.skips.joined(ranges, row)
        self._go_to(row, history)

    def restore(
        self, row: int, history: Iterable[Sequence[int]], skipped: Iterable[Sequence[int]]
    ) -> None:
        """Resume from a state; the skips of this schedule hold as well as those of the state."""
        self.skips = Skips(skipped).joined(self.skips.ranges, row)
        self._go_to(row, history)


def check_batch_size(given: Any) -> list[tuple[int, int]]:
    """Check `batch_size` as a user gives it: a number, or a ramp `[(0, 256), (row, 512), …]`."""
    ramp = [(0, given)] if isinstance(given, int | np.integer) else given
    points = whole_pairs(ramp) or []
    rows = [row for row, _ in points]
    rising = rows[:1] == [0] and all(a < b for a, b in pairwise(rows))
    if not (rising and all(size >= 1 for _, size in points)):
        raise InputError(
            f"batch_size={given!r}: expected a whole number of at least 1, or sizes by the row "
            "they begin at, like [(0, 256), (100_000, 512)]"
        )
    if any(size > MOST_ROWS for _, size in points):
        raise InputError(f"batch_size={given!r}: expected at most {MOST_ROWS:,} rows")
    return points


def _spans(sizes: BatchSizes, ordinal: int, ends: Sequence[int], whole: bool) -> Iterator[Span]:
    while ordinal < ends[-1]:
        size, section = sizes.at(ordinal), bisect_right(ends, ordinal)
        if whole and ordinal + size > ends[section] == ends[-1]:
            return
        yield Span(ordinal, size, section)
        ordinal = min(ordinal + size, ends[section])


def _steps(ordinals: int, size: int) -> int:
    return -(-ordinals // size)
