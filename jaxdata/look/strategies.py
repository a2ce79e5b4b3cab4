"""The packing strategies compared on the same documents: padding, documents cut, rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.rows.map_datasets import pack
from jaxdata.rows.packing.block_plan import StrategyName
from jaxdata.rows.packing.strategies import STRATEGIES


@dataclass(frozen=True)
class PackingCost:
    """One epoch of some sources with one strategy; in slots (= tokens), except `rows`."""

    strategy: StrategyName
    rows: int
    slots: int
    padding: int
    dropped: int
    cuts: float | None = None
    """of a thousand documents, where they were counted"""

    @property
    def description(self) -> str:
        """What the strategy does."""
        return STRATEGIES[self.strategy].description

    @property
    def real(self) -> int:
        """Slots that hold a token of the text."""
        return self.slots - self.padding

    @property
    def padding_share(self) -> float:
        """Share of the slots, and so of the compute, without training."""
        return self.padding / self.slots if self.slots else 0.0


def compare_strategies(sources: Sequence[Any], *, seq_len: int) -> list[PackingCost]:
    """Plan one epoch of `sources` (from `dataset.source`) with every strategy.

    Plans are made from the documents' lengths; no text is read.
    """
    found = []
    for docs in sources:
        plans = {name: pack(docs, seq_len=seq_len, strategy=name).plan for name in STRATEGIES}
        found.append(
            [
                PackingCost(name, plan.rows, plan.slots, plan.padding, plan.dropped_tokens)
                for name, plan in plans.items()
            ]
        )
    return summed(found)


def summed(costs: Sequence[Sequence[PackingCost]]) -> list[PackingCost]:
    """The costs of several sources together, by strategy."""
    counts = ("rows", "slots", "padding", "dropped")
    return [
        PackingCost(name, *(sum(getattr(one[place], count) for one in costs) for count in counts))
        for place, name in enumerate(STRATEGIES)
    ]


def rows_saved(costs: Sequence[PackingCost]) -> float:
    """Share of the rows of `pad` that `best_fit` saves."""
    rows = {cost.strategy: cost.rows for cost in costs}
    return 1 - rows["best_fit"] / rows["pad"] if rows["pad"] else 0.0


def packing_table(costs: Sequence[PackingCost], *, seq_len: int) -> Table:
    """The comparison as a table for a terminal."""
    table = Table(
        title=f"One epoch at seq_len {seq_len:,}",
        title_justify="left",
        caption="\n".join(f"{each.name}: {each.description}" for each in STRATEGIES.values()),
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for heading in ("rows", "real tokens", "padding", "padding %", "dropped"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            cost.strategy,
            f"{cost.rows:,}",
            f"{cost.real:,}",
            f"{cost.padding:,}",
            f"{100 * cost.padding_share:.2f}",
            f"{cost.dropped:,}",
        )
    return table


def describe_costs(costs: Sequence[PackingCost]) -> list[dict[str, Any]]:
    """The comparison as plain JSON values."""
    names = ("strategy", "rows", "slots", "padding", "dropped", "real", "padding_share")
    return [{name: getattr(cost, name) for name in names} for cost in costs]


MOST_PLANNED = 400_000
"""documents of a split that are planned with every strategy; of more, a sample is"""
_MOST_ROWS = 50_000  # of a source, whose segments are counted


@dataclass(frozen=True)
class Comparison:
    """The strategies on the same documents."""

    costs: list[PackingCost]
    planned: int
    """documents that were planned"""
    documents: int
    """documents of the split"""


class _Lengths:
    """Documents of which only the lengths are known: enough to plan.

    Nothing is read, and plans that no run asked for are not kept beside the data.
    """

    def __init__(self, documents: Documents, chosen: NDArray[Any]) -> None:
        self.lengths = np.asarray(documents.lengths)[chosen]
        self.name = documents.name
        self.fingerprint = f"{documents.fingerprint}, {len(chosen)} of {len(documents)}"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return np.zeros(int(self.lengths[index]), np.uint32)


def compare(sources: Sequence[Documents], *, seq_len: int) -> Comparison:
    """Plan one epoch of some sources with every strategy; of many documents, a sample."""
    documents = sum(map(len, sources))
    share = min(1.0, MOST_PLANNED / max(documents, 1))
    some = [_sampled(each, share) for each in sources if len(each)]
    planned = sum(map(len, some))
    costs = compare_strategies(some, seq_len=seq_len) if some else []
    with_cuts = [replace(cost, cuts=_cuts(cost.strategy, some, seq_len)) for cost in costs]
    return Comparison(with_cuts, planned, documents)


def _sampled(documents: Documents, share: float) -> _Lengths:
    count = max(1, round(len(documents) * share))
    if count == len(documents):
        return _Lengths(documents, np.arange(count))
    order = np.random.default_rng(derive(0, "report", documents.name))
    return _Lengths(documents, np.sort(order.choice(len(documents), count, replace=False)))


def _cuts(strategy: StrategyName, sources: Sequence[Any], seq_len: int) -> float:
    """How often a strategy cuts a thousand documents."""
    begun = continued = 0
    for documents in sources:
        table = pack(documents, seq_len=seq_len, strategy=strategy).table
        found = table.segments(np.arange(min(len(table), _MOST_ROWS)))
        begun += int(np.count_nonzero(found.start == 0))
        continued += int(np.count_nonzero(found.start))
    return 1_000 * continued / begun if begun else 0.0
