"""How evenly hosts and micro-batches share the work of attention, with and without balance."""

from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Floats, Ints
from jaxdata.base.wording import counted
from jaxdata.feed.balance import balance_of, window_of
from jaxdata.rows.map_datasets import known_rows
from jaxdata.rows.table import RowTable, in_batch_order

_STEPS = 64
"""whole batches that are looked at, spread over the run"""
_HOSTS = (8, 4, 2)


def host_work(
    rows: Any, *, batch_size: int, hosts: int | None = None, microbatches: int = 1
) -> str:
    """Say how evenly hosts share the work of some steps, from lengths alone.

    That is the work of the slowest part of a step over the mean of all parts, as a mean over steps:
    without balance and with it.

    Args:
        rows: as `jaxdata.pack` and `mix` return them.
        batch_size: rows of a global batch.
        hosts: that share it; None for 8, or as many of them as divide it.
        microbatches: of a host.

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
    without, balanced, moved = _measured(table, count, batch_size, hosts, microbatches)
    micro = f" in {microbatches} micro-batches" if microbatches > 1 else ""
    says = (
        f"attention of the slowest of {counted(hosts, 'host')} of "
        f"{counted(batch_size // hosts, 'row')}{micro} is {without:.3f} times the mean; with "
        f"loader.balance {balanced:.3f}"
    )
    if table.lanes == 1:
        return says
    return (
        f"{says}, which moves {100 * moved:.0f} % of the rows to hosts that read other lanes: from "
        "a bucket these come by exact ranges"
    )


def _measured(
    table: RowTable, steps: int, batch_size: int, hosts: int, microbatches: int
) -> tuple[float, float, float]:
    """Unevenness without balance and with it, and the share of the rows that change their host."""
    made_even = balance_of(table, "attention", {batch_size: hosts}, microbatches)
    assert made_even is not None
    starts, tables = zip(*table.sections(), strict=True)
    found, window, parts = list[list[float]](), window_of("attention"), hosts * microbatches
    for step in np.unique(np.linspace(0, steps - 1, _STEPS).astype(np.int64)).tolist():
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        section = tables[int(np.searchsorted(starts, numbers[-1], side="right")) - 1]
        plain = in_batch_order(section, numbers)
        dealt = made_even.deal(section, [plain], batch_size)[0]
        work = (_uneven(section.row_work(order, window), parts) for order in (plain, dealt))
        by_host = zip(dealt.reshape(hosts, -1), plain.reshape(hosts, -1), strict=True)
        found.append([*work, 1 - float(np.mean([np.isin(*pair) for pair in by_host]))])
    without, balanced, moved = np.mean(found, axis=0).tolist()
    return without, balanced, moved


def _uneven(work: Ints, parts: int) -> float:
    load: Floats = work.reshape(parts, -1).sum(axis=1).astype(float)
    return float(load.max() / load.mean()) if load.any() else 1.0
