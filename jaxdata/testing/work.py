"""How evenly hosts and micro-batches share the work of attention, with and without balance."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.base.wording import counted
from jaxdata.feed.balance import Balanced, balance_of, window_of
from jaxdata.rows.map_datasets import known_rows
from jaxdata.rows.table import in_batch_order

_STEPS = 64
_HOSTS = (8, 4, 2)


class HostWork(NamedTuple):
    """What the slowest of some hosts has to do, without balance and with it."""

    hosts: int
    microbatches: int
    rows: int
    """of a batch"""
    steps: int
    """that were looked at"""
    without: float
    """work of the slowest part of a step over the mean of all parts; the mean over steps"""
    balanced: float
    moved: float
    """share of the rows that change their host"""
    lanes: int

    def __str__(self) -> str:
        micro = f" in {self.microbatches} micro-batches" if self.microbatches > 1 else ""
        says = (
            f"attention of the slowest of {counted(self.hosts, 'host')} of "
            f"{counted(self.rows // self.hosts, 'row')}{micro} is {self.without:.3f} times the "
            f"mean; with loader.balance {self.balanced:.3f}"
        )
        moves = (
            f", which moves {100 * self.moved:.0f} % of the rows to hosts that read other lanes: "
            "from a bucket these come by exact ranges"
        )
        return says + moves * (self.lanes > 1)


def host_work(
    rows: Any,
    *,
    batch_size: int,
    hosts: int | None = None,
    microbatches: int = 1,
    balance: Balanced = "attention",
    steps: int = _STEPS,
) -> HostWork:
    """Measure how evenly hosts share the work of some steps, from lengths alone.

    Args:
        rows: as `jaxdata.pack` and `mix` return them.
        batch_size: rows of a global batch.
        hosts: that share it; None for 8, or as many of them as divide it.
        microbatches: of a host.
        balance: what is made even.
        steps: whole batches to look at, spread over the run.

    Raises:
        InputError: rows do not divide, or there is not one whole batch.
    """
    known = known_rows(rows)
    table = known.table if known else None
    count = len(rows) // batch_size
    hosts = next((n for n in _HOSTS if not batch_size % n), 1) if hosts is None else hosts
    if table is None or not count or batch_size % hosts:
        raise InputError(
            f"the work of {counted(hosts, 'host')} is not measured: expected rows as pack and mix "
            f"return them, at least {batch_size}, and a batch size that is a multiple of {hosts}"
        )
    made_even = balance_of(table, balance, {batch_size: hosts}, microbatches)
    assert made_even is not None
    starts, tables = zip(*table.sections(), strict=True)
    without, balanced, moved, window = [], [], [], window_of(balance)
    for step in np.unique(np.linspace(0, count - 1, steps).astype(np.int64)).tolist():
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        section = int(np.searchsorted(starts, numbers[-1], side="right")) - 1
        plain = in_batch_order(tables[section], numbers)
        dealt = made_even.deal(tables[section], [plain], batch_size)[0]
        parts = hosts * microbatches
        without.append(_uneven(tables[section].row_work(plain, window), parts))
        balanced.append(_uneven(tables[section].row_work(dealt, window), parts))
        by_host = zip(dealt.reshape(hosts, -1), plain.reshape(hosts, -1), strict=True)
        moved.append(1 - np.mean([np.isin(*pair) for pair in by_host]))
    as_it_is, even, share = (float(np.mean(each)) for each in (without, balanced, moved))
    sizes = hosts, microbatches, batch_size, len(moved)
    return HostWork(*sizes, as_it_is, even, share, table.lanes)


def _uneven(work: Ints, parts: int) -> float:
    load: NDArray[np.float64] = work.reshape(parts, -1).sum(axis=1).astype(float)
    return float(load.max() / load.mean()) if load.any() else 1.0
