"""What a run will read from each source, as a table for a terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


def plan_table(mixed: Any) -> Table:
    """One line for each source of a mixture (the result of `jaxdata.mix`).

    Rows and epochs are those of the whole run, the share is of its trained tokens; documents,
    tokens and fill are of one epoch.
    """
    table = Table(box=SIMPLE_HEAD, title=_title(mixed), title_justify="left")
    table.add_column("source")
    for heading in ("documents", "tokens", "fill %", "dropped", "rows", "epochs", "share %"):
        table.add_column(heading, justify="right")
    epochs, counts = mixed.epochs(), mixed.table.token_counts(len(mixed))
    trained = {name: each.trained_tokens for name, each in counts.items()}
    for name, rows in mixed.counts().items():
        plan = mixed.sources[name].plan
        table.add_row(
            name,
            f"{plan.documents:,}",
            f"{plan.trained_tokens:,}",
            f"{100 * plan.fill:.2f}",
            f"{plan.dropped_tokens:,}",
            f"{rows:,}",
            f"{epochs[name]:.3f}",
            f"{100 * trained[name] / (sum(trained.values()) or 1):.2f}",
        )
    return table


def _title(mixed: Any) -> str:
    phases = len(mixed.table.timeline.phases)
    (_, first), *others = mixed.table.sections()
    changes = "".join(f", from row {start:,} on {part.seq_len:,}" for start, part in others)
    return f"{len(mixed):,} rows of {first.seq_len:,}{changes} in {phases} phase{'s'[: phases > 1]}"
