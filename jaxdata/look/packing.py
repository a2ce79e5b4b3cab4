"""What each packing strategy makes of the same documents, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import jaxdata

__all__ = [
    "STRATEGIES",
    "PackingCost",
    "compare_strategies",
    "describe_costs",
    "packing_bars",
    "packing_table",
    "rows_saved",
]

STRATEGIES = {
    "pad": "one window a row",
    "concat": "one stream of all documents, cut every seq_len tokens",
    "crop": "each row begins a document; what does not fit is dropped",
    "best_fit": "windows of documents fitted together; nothing is dropped",
}


@dataclass(frozen=True)
class PackingCost:
    """One epoch of some sources under one strategy; in slots (= tokens) but for `rows`."""

    strategy: str
    rows: int
    slots: int
    padding: int
    dropped: int

    @property
    def real(self) -> int:
        """Slots that hold a token of the text."""
        return self.slots - self.padding

    @property
    def padding_share(self) -> float:
        """Share of the slots, and so of the compute, that trains nothing."""
        return self.padding / self.slots if self.slots else 0.0


def compare_strategies(sources: Sequence[Any], *, seq_len: int) -> list[PackingCost]:
    """Plan one epoch of `sources` (from `dataset.source`) with every strategy.

    Plans are made from the documents' lengths; no text is read.
    """
    return [_cost(sources, strategy, seq_len) for strategy in STRATEGIES]


def _cost(sources: Sequence[Any], strategy: str, seq_len: int) -> PackingCost:
    plans = [jaxdata.pack(docs, seq_len=seq_len, strategy=strategy).plan for docs in sources]
    return PackingCost(
        strategy=strategy,
        rows=sum(plan.rows for plan in plans),
        slots=sum(plan.slots for plan in plans),
        padding=sum(plan.padding for plan in plans),
        dropped=sum(plan.dropped_tokens for plan in plans),
    )


def rows_saved(costs: Sequence[PackingCost]) -> float:
    """Share of the rows of `pad` that `best_fit` does without."""
    rows = {cost.strategy: cost.rows for cost in costs}
    return 1 - rows["best_fit"] / rows["pad"] if rows["pad"] else 0.0


def packing_table(costs: Sequence[PackingCost], *, seq_len: int) -> Table:
    """The comparison, for a terminal."""
    table = Table(
        title=f"One epoch at seq_len {seq_len:,}",
        title_justify="left",
        caption="\n".join(f"{name}: {meaning}" for name, meaning in STRATEGIES.items()),
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
    return [asdict(c) | {"real": c.real, "padding_share": c.padding_share} for c in costs]


def packing_bars(costs: Sequence[PackingCost], width: int, *, plain: bool) -> Iterator[Text]:
    """The slots of each strategy as a bar: real tokens, then padding, then what is dropped.

    Args:
        costs: of every strategy.
        width: columns of the longest line.
        plain: letters that every font and file has, and no colours.
    """
    real, padding, dropped = "#.x" if plain else "█░x"
    room = width - 10
    most = max((cost.slots + cost.dropped for cost in costs), default=0) or 1
    for cost in costs:
        line = Text(f"{cost.strategy:<9} ")
        shown = [round(room * part / most) for part in (cost.real, cost.padding, cost.dropped)]
        for character, count, color in zip(
            (real, padding, dropped), shown, ("green", "yellow", "red"), strict=True
        ):
            line.append(character * count, color)
        line.truncate(width)
        yield line
    yield Text(f"{'':<10}{real} tokens of the text, {padding} padding, {dropped} dropped")
