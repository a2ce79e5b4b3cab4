"""The packing strategies compared on the same documents: rows, padding, what is dropped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.look.terminal import table
from jaxdata.rows.map_datasets import pack
from jaxdata.rows.packing.strategies import STRATEGIES

MOST_PLANNED = 400_000
"""documents of a split that are planned with every strategy; of more, a sample is"""


def compare_strategies(sources: Sequence[Any], *, seq_len: int) -> list[dict[str, Any]]:
    """Plan one epoch of `sources` (from `dataset.source`) with every strategy.

    Plans are made from the documents' lengths; no text is read. Values are plain, and but for
    `rows` count slots (= tokens): `real` ones hold a token of the text.
    """
    found = []
    for name, strategy in STRATEGIES.items():
        plans = [pack(docs, seq_len=seq_len, strategy=name).plan for docs in sources]
        counts = ((p.rows, p.slots, p.padding, p.dropped_tokens) for p in plans)
        rows, slots, padding, dropped = map(sum, zip((0, 0, 0, 0), *counts, strict=True))
        cost = {
            "strategy": name,
            "rows": rows,
            "slots": slots,
            "padding": padding,
            "dropped": dropped,
            "real": slots - padding,
            "padding_share": padding / max(slots, 1),
            "description": strategy.description,
        }
        found.append(cost)
    return found


def packing_table(costs: Sequence[Mapping[str, Any]], *, seq_len: int) -> Table:
    """The comparison as a table for a terminal."""
    shown = table(
        f"One epoch at seq_len {seq_len:,}",
        ["strategy"],
        ["rows", "real tokens", "padding", "padding %", "dropped"],
        (
            [each[name] for name in ("strategy", "rows", "real", "padding")]
            + [f"{100 * each['padding_share']:.2f}", each["dropped"]]
            for each in costs
        ),
    )
    shown.caption = "\n".join(f"{each['strategy']}: {each['description']}" for each in costs)
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
