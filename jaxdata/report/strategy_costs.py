"""What each packing strategy makes of a split: padding, documents cut, rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents
from jaxdata.look.packing import PackingCost, compare_strategies
from jaxdata.map_datasets import pack
from jaxdata.packing.block_plan import StrategyName
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.seeds import derive

MOST_PLANNED = 400_000
"""documents of a split that are planned with every strategy; of more, a sample is"""
_MOST_ROWS = 50_000  # of a source, whose segments are counted


@dataclass(frozen=True)
class StrategyCost(PackingCost):
    """One epoch of a split with one strategy, and how often it cuts documents."""

    cuts: float
    """a thousand documents"""
    description: str


@dataclass(frozen=True)
class Comparison:
    """The strategies on the same documents."""

    costs: list[StrategyCost]
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
    by_name = zip(STRATEGIES, costs, strict=bool(some))
    made = [_with_cuts(cost, strategy, some, seq_len) for strategy, cost in by_name]
    return Comparison(made, planned, documents)


def _sampled(documents: Documents, share: float) -> _Lengths:
    count = max(1, round(len(documents) * share))
    if count == len(documents):
        return _Lengths(documents, np.arange(count))
    order = np.random.default_rng(derive(0, "report", documents.name))
    return _Lengths(documents, np.sort(order.choice(len(documents), count, replace=False)))


def _with_cuts(
    cost: PackingCost, strategy: StrategyName, sources: Sequence[Any], seq_len: int
) -> StrategyCost:
    begun = continued = 0
    for documents in sources:
        table = pack(documents, seq_len=seq_len, strategy=strategy).table
        found = table.segments(np.arange(min(len(table), _MOST_ROWS)))
        begun += int(np.count_nonzero(found.start == 0))
        continued += int(np.count_nonzero(found.start))
    cuts = 1_000 * continued / begun if begun else 0.0
    described = STRATEGIES[strategy].description
    return StrategyCost(**vars(cost), cuts=cuts, description=described)
