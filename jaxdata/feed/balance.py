"""Equal work for every part of a batch: which host, device and micro-batch gets which row.

Attention costs the sum of the squared lengths of a row's segments, and a step takes as long as its
slowest part. The rows of a global batch are known from the plan, so every process works out for
itself who gets which: the largest are dealt first, forth and back, then rows are swapped. The set
of rows of a step stays as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_whole, plain
from jaxdata.base.ragged import Ints
from jaxdata.rows.table import MOST_SLOTS, KeyedRows, RowTable

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
    found = dict(given) if isinstance(given, Mapping) else given
    window = (
        plain(found["attention"]) if isinstance(found, dict) and [*found] == ["attention"] else 0
    )
    if found is None or found == "attention":
        return found
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
    as_they_lie = np.broadcast_to(
        np.arange(rows).reshape(parts, -1), (groups, parts, rows // parts)
    )
    if parts == 1 or parts == rows:
        return as_they_lie
    found = as_they_lie.copy() if keep else _dealt(work, parts)
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
