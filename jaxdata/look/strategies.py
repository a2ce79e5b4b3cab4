"""The packing strategies compared on the same documents: rows, padding, what is dropped."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.look.terminal import table
from jaxdata.rows.map_datasets import pack
from jaxdata.rows.packing.block_plan import StrategyName
from jaxdata.rows.packing.strategies import STRATEGIES

MOST_PLANNED = 400_000
"""documents of a split that are planned with every strategy; of more, a sample is"""


@dataclass(frozen=True)
class PackingCost:
    """One epoch of some sources with one strategy; in slots (= tokens), except `rows`."""

    strategy: StrategyName
    rows: int
    slots: int
    padding: int
    dropped: int

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
        return self.padding / max(self.slots, 1)

    def described(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return asdict(self) | {"real": self.real, "padding_share": self.padding_share}


def compare_strategies(sources: Sequence[Any], *, seq_len: int) -> list[PackingCost]:
    """Plan one epoch of `sources` (from `dataset.source`) with every strategy.

    Plans are made from the documents' lengths; no text is read.
    """
    found = []
    for name in STRATEGIES:
        plans = [pack(docs, seq_len=seq_len, strategy=name).plan for docs in sources]
        counts = ((p.rows, p.slots, p.padding, p.dropped_tokens) for p in plans)
        found.append(PackingCost(name, *map(sum, zip((0, 0, 0, 0), *counts, strict=True))))
    return found


def packing_table(costs: Sequence[PackingCost], *, seq_len: int) -> Table:
    """The comparison as a table for a terminal."""
    shown = table(
        f"One epoch at seq_len {seq_len:,}",
        ["strategy"],
        ["rows", "real tokens", "padding", "padding %", "dropped"],
        (
            (c.strategy, c.rows, c.real, c.padding, f"{100 * c.padding_share:.2f}", c.dropped)
            for c in costs
        ),
    )
    shown.caption = "\n".join(f"{each.name}: {each.description}" for each in STRATEGIES.values())
    return shown


class _Lengths:
    """Some documents of which only the lengths are known: enough to plan.

    Nothing is read, and plans that no run asked for are not kept beside the data.
    """

    def __init__(self, documents: Documents, share: float) -> None:
        count = max(1, round(len(documents) * share))
        chosen: NDArray[Any] | slice = slice(None)
        if count < len(documents):
            random = np.random.default_rng(derive(0, "report", documents.name))
            chosen = np.sort(random.choice(len(documents), count, replace=False))
        self.lengths = np.asarray(documents.lengths)[chosen]
        self.name = documents.name
        self.fingerprint = f"{documents.fingerprint}, {count} of {len(documents)}"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return np.zeros(int(self.lengths[index]), np.uint32)


def sampled(sources: Sequence[Documents]) -> list[Any]:
    """The lengths of documents, of many a sample, as what can be packed."""
    share = min(1.0, MOST_PLANNED / max(sum(map(len, sources)), 1))
    return [_Lengths(each, share) for each in sources if len(each)]
