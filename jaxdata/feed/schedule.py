"""The rows of each step, and which host, device and micro-batch gets which.

Batch sizes, past and future, run over the rows that are not skipped. Attention costs the sum of the
squared lengths of a row's segments, and a step takes as long as its slowest part. The rows of a
global batch are known from the plan, so every process works out for itself who gets which: the
largest are dealt first, forth and back, then rows are swapped. The set of rows of a step stays as
it is.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_whole, plain
from jaxdata.base.ragged import Ints, merged
from jaxdata.rows.table import MOST_SLOTS, KeyedRows, RowTable


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
        lengths = [_steps(end - begin, size) for (begin, size), (end, _) in pairwise(self._sizes)]
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

    def find(self, row: int) -> int | None:
        """The step that has a row; None if none has."""
        ordinal = self.skips.ordinal(row)
        if ordinal >= self.count or self._row(ordinal) != row:
            return None
        step = self._step(ordinal + 1) - 1
        return step if step < len(self) else None

    def spans(self, ahead: int = 0, every: int = 1) -> Iterator[Span]:
        """The batches from here to the end, after the first few each `every`-th of them."""
        found = _spans(self._sizes, self._ordinal, self.ends, self._drop_remainder)
        return islice(found, ahead, None, every)

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
    if not (rising and all(1 <= size <= MOST_ROWS for _, size in points)):
        raise InputError(
            f"batch_size={given!r}: expected a whole number of at least 1 and at most "
            f"{MOST_ROWS:,} rows, or such sizes by the row they begin at, like [(0, 256), "
            "(100_000, 512)]"
        )
    return points


Work = Literal["attention"]
Balanced = Work | Mapping[Work, int]
"""what is made even: attention, or attention of a sliding window, `{"attention": window}`"""

UNDEALT = {"balance": None, "microbatches": 1, "context_parallel": 1}
"""the settings of a loader by which rows and slots keep their own order"""

_EVEN = 256
"""parts are even where the slowest does at most a 256th more than the mean"""
_COMPARED = 32
"""rows of a part that are compared with those of another, at most"""
_LEAST_PARTS = 8
"""parts that are compared with others in a sweep"""
_SWEEPS = 64


def check_balance(given: Any) -> Any:
    """Check `balance` as a user gives it.

    Raises:
        InputError: it names no work, or a window that is none.
    """
    if given is None or given == "attention":
        return given
    named = isinstance(given, Mapping) and [*given] == ["attention"]
    window = plain(given["attention"]) if named else 0
    if not (is_whole(window) and 1 <= window <= MOST_SLOTS):
        raise InputError(
            f"balance={given!r}: expected 'attention', or {{'attention': window}} with the tokens "
            "of a sliding window, a whole number of at least 1"
        )
    return {"attention": window}


def window_of(balance: Balanced) -> int:
    """The tokens of the sliding window; as many as a row may have where there is none."""
    return MOST_SLOTS if isinstance(balance, str) else balance["attention"]


@dataclass(frozen=True)
class Balance:
    """Deals the rows of global batches to their parts; a pure function of each batch.

    The parts of a batch are the data shards (hosts with `shard=`, devices with `sharding=`), each
    cut into micro-batches: consecutive rows of equal number. Rows that complete a last batch are
    dealt, too; they cost nothing.

    Args:
        work: what is made even.
        shards: data shards of a batch, by batch size.
        across: whether rows change their shard; else only micro-batches are made even.
        microbatches: of a shard.
    """

    work: Balanced
    shards: Mapping[int, int]
    across: bool = True
    microbatches: int = 1

    def deal(self, table: KeyedRows, batches: Sequence[Ints], size: int, shift: int = 0) -> Ints:
        """The rows of some batches as these hold them, from the order that they have without it.

        Args:
            table: the rows of their section.
            batches: numbers of rows; of the table's after `shift` more.
            size: of a batch.
            shift: rows of earlier passes.

        Returns:
            int64 (batches, size), -1 where a batch has no row.
        """
        assert isinstance(table, RowTable)  # see `balance_of`
        held = np.full((len(batches), size), -1)
        for row, batch in zip(held, batches, strict=True):
            row[: len(batch)] = batch
        if size not in self.shards:  # of an earlier run: who shared it is not known
            return held
        known, work = held >= 0, np.zeros_like(held)
        work[known] = table.row_work(held[known] + shift, window_of(self.work))
        # The work of a batch, times its parts, fits in 64 bits.
        work >>= max(0, 2 * (table.seq_len.bit_length() + size.bit_length()) - 62)
        shards = self.shards[size]
        order = evened(work, shards if self.across else 1, keep=table.lanes > 1)
        order = order.reshape(len(held) * shards, -1)
        if self.microbatches > 1:
            of_shards = np.take_along_axis(work, order.reshape(held.shape), 1).reshape(order.shape)
            inside = evened(of_shards, self.microbatches, keep=False).reshape(order.shape)
            order = np.take_along_axis(order, inside, axis=1)
        return np.take_along_axis(held, order.reshape(held.shape), axis=1)

    def facts(self) -> dict[str, Any]:
        """What all processes of a run must agree on, by name."""
        work = self.work if self.across else None
        return {"balance": work, "microbatches": self.microbatches, "shards": self.shards}


def balance_of(
    table: RowTable | None, given: Balanced | None, shards: Mapping[int, int], microbatches: int
) -> Balance | None:
    """The balance that a loader is asked for; None for none.

    Args:
        table: of the rows, or of those that they were made of one by one; None if unknown.
        given: as `jaxdata.Loader` takes it, like `microbatches`.
        shards: data shards of a batch, by batch size.
        microbatches: of a shard.

    Raises:
        InputError: rows do not divide, or their segments are not known without reading them.
    """
    for size, count in shards.items():
        if size // count % microbatches:
            raise InputError(
                f"microbatches={microbatches} cannot divide the {size // count} rows that each of "
                f"{count} parts has of batch_size={size}: choose a batch_size that is a multiple "
                f"of {count * microbatches}"
            )
    if given is None and microbatches == 1:
        return None
    if table is None:
        raise InputError(
            "balance and microbatches are made even by the segments of rows, which are not known "
            "of these rows without reading them: expected rows as pack and mix return them, "
            "mapped one by one or not"
        )
    return Balance(given or "attention", shards, given is not None, microbatches)


def evened(work: Ints, parts: int, *, keep: bool) -> Ints:
    """Deal rows to parts of equal number and, as far as it goes, of equal work.

    Args:
        work: int64 (groups, rows), what each costs; groups are dealt one by one.
        parts: of each group; they divide its rows.
        keep: begin with rows as they lie and only swap them, so that few change their part: hosts
            that share lanes of a bucket read the others anew.

    Returns:
        int64 (groups, parts, rows a part): numbers of rows of the group, increasing in a part.

    Integers only, so that all processes find the same.

    >>> evened(np.array([[9, 8, 1, 2]]), 2, keep=False).tolist()
    [[[0, 2], [1, 3]]]
    """
    groups, rows = work.shape
    as_is = np.broadcast_to(np.arange(rows).reshape(parts, -1), (groups, parts, rows // parts))
    if parts == 1 or parts == rows:
        return as_is
    found = as_is.copy() if keep else _dealt(work, parts)
    _swap(found, work)
    found.sort(axis=2)
    return found


def _dealt(work: Ints, parts: int) -> Ints:
    """Rows by size, dealt forth and back."""
    rounds = np.argsort(-work, axis=1, kind="stable").reshape(len(work), -1, parts)
    rounds[:, 1::2] = rounds[:, 1::2, ::-1].copy()
    return rounds.swapaxes(1, 2).copy()


def _swap(found: Ints, work: Ints) -> None:
    """Swap rows of parts with much and with little work, in place, as long as it helps.

    In a sweep each of the parts with most work is compared with one of those below the median,
    with another in each sweep.
    """
    groups, parts, rows = found.shape
    half, step = parts // 2, -(-rows // _COMPARED)
    most = min(half, max(_LEAST_PARTS, parts // 16))
    cost = work[np.arange(groups)[:, None, None], found]
    load = cost.sum(axis=2)
    total, idle = load.sum(axis=1), np.zeros(groups, np.int64)
    for sweep in range(_SWEEPS):
        # A group goes on or not whatever the others do: a batch has one order.
        uneven = load.max(axis=1) * parts - total > total // _EVEN
        group = np.flatnonzero(uneven & (idle < half))[:, None]
        if not len(group):
            return
        rank = np.argsort(-load[group[:, 0]], axis=1, kind="stable")
        high = rank[:, :most]
        low = np.roll(rank[:, ::-1][:, :half], sweep, axis=1)[:, :most]
        some = np.arange(sweep % step, rows, step)
        gap = load[group, high] - load[group, low]
        # What a swap leaves of the gap, for each row of one and each of the other.
        moved = cost[group, high][..., some, None] - cost[group, low][..., None, some]
        left = np.abs(gap[..., None] - 2 * moved.reshape(*gap.shape, -1))
        best = left.argmin(axis=2)
        helps = np.take_along_axis(left, best[..., None], axis=2)[..., 0] < gap
        idle[group[:, 0]] = np.where(helps.any(axis=1), 0, idle[group[:, 0]] + 1)
        of = np.broadcast_to(group, helps.shape)[helps]
        mine, theirs = (some[each] for each in np.divmod(best[helps], len(some)))
        here, there = (of, high[helps], mine), (of, low[helps], theirs)
        taken = cost[here] - cost[there]
        load[here[:2]] -= taken
        load[there[:2]] += taken
        for array in (found, cost):
            array[here], array[there] = array[there], array[here]
