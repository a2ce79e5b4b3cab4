"""The rows of each step: batch sizes, past and future, over the rows that are not skipped."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_whole, plain
from jaxdata.base.ragged import Ints, merged


class Skips:
    """Ranges of rows that are never delivered.

    Args:
        ranges: `(a, b)` skips rows `[a, b)`; `(a, b, since)` skips only those from `since` on:
            the others had been delivered when the range was asked for, and keep their ordinals.

    Lookups take O(log ranges).

    >>> skips = Skips([(2, 4)])
    >>> skips.ordinal(5), skips.rows(np.arange(4)).tolist()
    (3, [0, 1, 4, 5])
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._since: dict[tuple[int, int], int] = {}
        for a, b, *more in ranges:
            since = max([a, *more])
            self._since[a, b] = min(since, self._since.get((a, b), since))
        some = [(since, b) for (_, b), since in self._since.items() if since < b]
        begin, end = np.array(some, np.int64).reshape(-1, 2).T
        _, self._begin, self._end, _ = merged(np.zeros_like(begin), begin, end, gap=0)
        self.gaps = list(zip(self._begin.tolist(), self._end.tolist(), strict=True))
        """the skipped rows, as disjoint ranges in order"""
        self._gone = np.append(0, np.cumsum(self._end - self._begin))  # rows in the first k gaps

    @property
    def ranges(self) -> list[list[int]]:
        """The ranges that it was made of: plain lists for the state."""
        ranges = sorted(self._since.items())
        return [[a, b] if since == a else [a, b, since] for (a, b), since in ranges]

    def ordinal(self, row: int) -> int:
        """The number of rows before `row` that are not skipped."""
        gap = int(np.searchsorted(self._begin, row))
        beyond = max(0, int(self._end[gap - 1]) - row) if gap else 0
        return row - int(self._gone[gap]) + beyond

    def rows(self, ordinals: Ints) -> Ints:
        """The rows at `ordinals`; int64, of their shape."""
        gap = np.searchsorted(self._begin - self._gone[:-1], ordinals, side="right")
        return np.asarray(ordinals + self._gone[gap], np.int64)

    def joined(self, ranges: Iterable[Sequence[int]], row: int) -> "Skips":
        """These ranges and more, asked for when all rows before `row` were delivered."""
        return Skips([*self.ranges, *((a, b, row) for a, b, *_ in ranges)])

    def replayed(self, row: int) -> "Skips":
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


MOST_ROWS = 2**24
"""of a batch"""
_NEVER = 2**63
"""an ordinal that no row has"""


class Span(NamedTuple):
    """A global batch: `size` rows of consecutive ordinals."""

    first: int
    """ordinal of its first row"""
    size: int
    section: int = 0
    """number of its section; rows beyond the end of that are padding"""


class Schedule:
    """The position of a loader, and the rows of its steps, past and future.

    An *ordinal* numbers the rows that are not skipped. A batch size holds for the batches that
    begin at its row or after it, and a batch begins where a section does.

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
        past = [(ordinal(begin), size) for begin, size in history]
        self._sizes = [point for point in past if point[0] < self._ordinal]
        """(ordinal, batch size from there on); a batch begins at each"""
        if not self._sizes or self._ordinal < self.count:
            self._add_sizes_to_come()
        lengths = [
            _steps(following - begin, size)
            for (begin, size), (following, _) in pairwise(self._sizes)
        ]
        self._begun = [*accumulate(lengths, initial=0)]
        """steps before each of the sizes"""

    def _add_sizes_to_come(self) -> None:
        ramp = [(self.skips.ordinal(begin), size) for begin, size in self.ramp]
        cuts = [end for end in self.ends if self._ordinal < end < self.count]
        sizes = self._sizes
        for begin, end in pairwise([self._ordinal, *dict.fromkeys(cuts), _NEVER]):
            size = [size for after, size in ramp if after <= begin][-1]
            last, each = sizes[-1] if sizes else (0, 0)
            if begin in cuts or size != each or (begin - last) % each:
                sizes.append((begin, size))
            for after, size in ramp:
                last, each = sizes[-1]
                at = last + _steps(after - last, each) * each
                if begin < after and at < end and size != each:
                    if at <= last:  # it takes effect where the one before would have
                        sizes.pop()
                    sizes.append((max(at, last), size))

    def _first(self, step: int) -> int:
        """The first ordinal of a step."""
        at = bisect_right(self._begun, step) - 1
        begin, size = self._sizes[at]
        return begin + (step - self._begun[at]) * size

    def _step(self, ordinal: int) -> int:
        """Steps before `ordinal`, an unfinished one included."""
        at = max(bisect_left(self._sizes, (ordinal, 0)) - 1, 0)
        begin, size = self._sizes[at]
        return self._begun[at] + _steps(max(ordinal - begin, 0), size)

    def _row(self, ordinal: int) -> int:
        return int(self.skips.rows(np.array([ordinal]))[0]) if ordinal < self.count else self._total

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self._row(self._ordinal)

    @property
    def step(self) -> int:
        """Steps before the next row."""
        return self._step(self._ordinal)

    @property
    def at_end(self) -> bool:
        """Whether there is no further batch."""
        return next(self.spans(), None) is None

    def __len__(self) -> int:
        ends = self._step(self.count)
        partial = self._first(ends) > self.count
        return ends - (partial and self._drop_remainder)

    @property
    def history(self) -> list[list[int]]:
        """The sizes of batches so far, as `[row, size from there on]`; at the start, the first."""
        past = [point for point in self._sizes if point[0] < self._ordinal] or self._sizes[:1]
        return [[self._row(ordinal), size] for ordinal, size in past]

    def first_row(self, step: int) -> int:
        """The first row of a step; the number of rows for those after the end."""
        return self._row(self._first(step))

    def batch_rows(self, step: int) -> Ints:
        """Rows of the global batch of a step, past or future, without padding."""
        stop = min(self._first(step + 1), self.count)
        return self.skips.rows(np.arange(self._first(step), stop))

    def span(self, step: int) -> Span:
        """The batch of a step, past or future."""
        size = self._sizes[bisect_right(self._begun, step) - 1][1]
        first = self._first(step)
        return Span(first, size, bisect_right(self.ends, first))

    def find(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and the row's number in the batch; None if no step has it."""
        ordinal = self.skips.ordinal(row)
        if ordinal >= self.count or self._row(ordinal) != row:
            return None
        step = self._step(ordinal + 1) - 1
        return (step, ordinal - self._first(step)) if step < len(self) else None

    def spans(self) -> Iterator[Span]:
        """The batches from here to the end."""
        return _spans(self._sizes, self._ordinal, self.ends, self._drop_remainder)

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
        passed = [[self._row(ordinal), size] for ordinal, size in self._sizes]
        self.skips = self.skips.replayed(row)
        self._go_to(row, passed)  # a seek ahead passes sizes that were to come

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


def _spans(
    sizes: Sequence[tuple[int, int]], ordinal: int, ends: Sequence[int], whole: bool
) -> Iterator[Span]:
    begins = [begin for begin, _ in sizes]
    while ordinal < ends[-1]:
        size, section = sizes[bisect_right(begins, ordinal) - 1][1], bisect_right(ends, ordinal)
        if whole and ordinal + size > ends[section] == ends[-1]:
            return
        yield Span(ordinal, size, section)
        ordinal = min(ordinal + size, ends[section])


def _steps(ordinals: int, size: int) -> int:
    return -(-ordinals // size)


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
