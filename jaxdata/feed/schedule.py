"""Which rows each step has: batch sizes so far and to come, over the rows that are not skipped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.skips import Skips

__all__ = ["BatchSizes", "Schedule", "Span", "check_batch_size"]


class Span(NamedTuple):
    """A global batch: `size` rows at consecutive places, the first at `place`."""

    place: int
    size: int
    section: int = 0
    """number of the section it lies in; rows beyond the end of that are padding"""


class BatchSizes:
    """Batch sizes by place: `[(place, batch size from there on), …]`, the first at place 0.

    >>> sizes = BatchSizes([(0, 4), (8, 6)])
    >>> sizes.first(2), sizes.first(3), sizes.step(14), sizes.at(8)
    (8, 14, 3, 6)
    """

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        self.points = [(int(place), int(size)) for place, size in points]
        self._begins = [place for place, _ in self.points]

    def at(self, place: int) -> int:
        """Size of the batch that begins at `place`."""
        return self.points[bisect_right(self._begins, place) - 1][1]

    def first(self, step: int) -> int:
        """First place of a step."""
        for (begin, size), (end, _) in pairwise(self.points):
            steps = _steps(end - begin, size)
            if step < steps:
                return begin + step * size
            step -= steps
        begin, size = self.points[-1]
        return begin + step * size

    def step(self, place: int) -> int:
        """Steps before `place`, a begun one counted whole."""
        ends = [begin for begin, _ in self.points[1:]] + [place]
        spans = zip(self.points, ends, strict=True)
        return sum(_steps(max(min(end, place) - begin, 0), size) for (begin, size), end in spans)

    def past(self, place: int) -> list[tuple[int, int]]:
        """The sizes that batches before `place` had; before any, the first there is."""
        return [point for point in self.points if point[0] < place] or self.points[:1]

    def continued(self, place: int, ramp: BatchSizes, cuts: Sequence[int] = ()) -> BatchSizes:
        """The same history up to `place`, and from there on the sizes of `ramp`.

        A size of the ramp holds for the batches that begin at its place or after it; a batch
        begins at every one of `cuts`, places in order.
        """
        points = [point for point in self.points if point[0] < place]
        size = ramp.at(place)
        if not points or points[-1][1] != size or not BatchSizes(points).reaches(place):
            points.append((place, size))
        changes = [*((cut, 0) for cut in cuts), *ramp.points]
        for begin, size in sorted(changes, key=_place):  # a cut first, where both are
            last, each = points[-1]
            if begin > place and not size:
                points += [(begin, each)] * (begin > last)
            elif begin > place and size != each:
                ahead = last + _steps(max(begin - last, 0), each) * each
                begin = min([ahead, *(cut for cut in cuts if cut >= begin)])
                if begin == last:
                    points.pop()
                points.append((begin, size))
        return BatchSizes(points)

    def reaches(self, place: int) -> bool:
        """Whether a batch begins at `place`."""
        return self.first(self.step(place)) == place


class Schedule:
    """Where a loader is, and which rows its steps have had and will have.

    Args:
        total: rows there are.
        ramp: `[(row, batch size of batches that begin there or later), …]`.
        skipped: ranges `(a, b)` of rows that are never delivered.
        drop_remainder: leave out a last batch that is not full.
        sections: first rows of the parts that no batch reaches over (see `rows.table.sections`).
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
        place = self.skips.place
        self.places = place(self._total)
        """rows that are not skipped"""
        self.ends = [*map(place, self._sections[1:]), self.places]
        """places at which the sections end"""
        self._place = place(row)
        points = [(place(begin), size) for begin, size in history]
        past = BatchSizes(point for point in points if point[0] < self._place)
        ramp = BatchSizes((place(begin), size) for begin, size in self.ramp)
        cuts = [end for end in self.ends if end < self.places]
        ended = past.points and self._place == self.places
        self._sizes = past if ended else past.continued(self._place, ramp, cuts)

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self._row(self._place)

    def _row(self, place: int) -> int:
        return int(self.skips.rows(np.array([place]))[0]) if place < self.places else self._total

    @property
    def step(self) -> int:
        """Steps before the next row."""
        return self._sizes.step(self._place)

    def __len__(self) -> int:
        ends = self._sizes.step(self.places)
        partial = self._sizes.first(ends) > self.places
        return ends - (partial and self._drop_remainder)

    @property
    def history(self) -> list[list[int]]:
        """The sizes that batches so far had, as `[row, size]` from there on."""
        return self._in_rows(self._sizes.past(self._place))

    def _in_rows(self, points: list[tuple[int, int]]) -> list[list[int]]:
        return [[self._row(place), size] for place, size in points]

    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or to come, without those that only fill it."""
        first = self._sizes.first(step)
        stop = min(first + self._sizes.at(first), self.places)
        return self.skips.rows(np.arange(first, stop))

    def find(self, row: int) -> tuple[int, int] | None:
        """The step that has a row and its number in the batch; None where no step has it."""
        place = self.skips.place(row)
        if place >= self.places or self._row(place) != row:
            return None
        step = self._sizes.step(place + 1) - 1
        return (step, place - self._sizes.first(step)) if step < len(self) else None

    def spans(self) -> Iterator[Span]:
        """The batches from here to the end."""
        return _spans(self._sizes, self._place, self.ends, self._drop_remainder)

    def advance(self, span: Span) -> None:
        """Note that a batch was delivered."""
        self._place = min(span.place + span.size, self.ends[span.section])

    def seek(self, row: int) -> None:
        """Go to a row; from there on all that was ever to be skipped is skipped."""
        passed = self._in_rows(self._sizes.points)  # a seek ahead passes over sizes still to come
        self.skips = self.skips.replayed(row)
        self._go_to(row, passed)

    def seek_step(self, step: int) -> None:
        """Go to the first row of a step."""
        self.seek(self._row(self._sizes.first(step)))

    def skip(self, ranges: Iterable[Sequence[int]]) -> None:
        """Never deliver these rows from here on."""
        row, history = self.next_row, self.history
        self.skips = self.skips.joined(ranges, row)
        self._go_to(row, history)

    def restore(
        self, row: int, history: Iterable[Sequence[int]], skipped: Iterable[Sequence[int]]
    ) -> None:
        """Go on from a state. What this schedule was to skip, it skips as well."""
        own = [each[:2] for each in self.skips.ranges]
        self.skips = Skips(skipped).joined(own, row)
        self._go_to(row, history)


def check_batch_size(given: Any) -> list[tuple[int, int]]:
    """`batch_size` as a user gives it: a number, or a ramp `[(0, 256), (row, 512), …]`."""
    ramp = [(0, given)] if isinstance(given, int | np.integer) else given
    try:
        points = [(int(row), int(size)) for row, size in ramp]
        whole = all(point == tuple(each) for point, each in zip(points, ramp, strict=True))
    except (TypeError, ValueError):
        points, whole = [], False
    rows = [row for row, _ in points]
    rising = rows[:1] == [0] and all(a < b for a, b in pairwise(rows))
    if not (whole and rising and all(size >= 1 for _, size in points)):
        raise InputError(
            f"batch_size={given!r}: expected a whole number of at least 1, or sizes by the row "
            "they begin at, like [(0, 256), (100_000, 512)]"
        )
    return points


def _spans(sizes: BatchSizes, place: int, ends: Sequence[int], whole: bool) -> Iterator[Span]:
    while place < ends[-1]:
        size, section = sizes.at(place), bisect_right(ends, place)
        if whole and place + size > ends[section] == ends[-1]:
            return
        yield Span(place, size, section)
        place = min(place + size, ends[section])


def _place(point: tuple[int, int]) -> int:
    return point[0]


def _steps(places: int, size: int) -> int:
    return -(-places // size)
