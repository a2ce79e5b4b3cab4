"""What a run will read, source by source, as a table for a terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

__all__ = ["plan_table"]


def plan_table(mixed: Any) -> Table:
    """One line a source of a mixture (what `jaxdata.mix` returns).

    Rows and epochs are those of the whole run, the share is of its trained tokens; documents,
    tokens and fill are of one epoch.
    """
    table = Table(box=SIMPLE_HEAD, title=_title(mixed), title_justify="left")
    table.add_column("source")
    for heading in ("documents", "tokens", "fill %", "dropped", "rows", "epochs", "share %"):
        table.add_column(heading, justify="right")
    trained = _trained(mixed)
    for name, rows in mixed.counts().items():
        plan = mixed.sources[name].plan
        table.add_row(
            name,
            f"{plan.documents:,}",
            f"{plan.trained_tokens:,}",
            f"{100 * plan.fill:.2f}",
            f"{plan.dropped_tokens:,}",
            f"{rows:,}",
            f"{rows / plan.rows:.3f}" if plan.rows else "0",
            f"{100 * trained[name] / (sum(trained.values()) or 1):.2f}",
        )
    return table


def _title(mixed: Any) -> str:
    phases = len(mixed.table.phases)
    return f"{len(mixed):,} rows of {mixed.table.seq_len:,} in {phases} phase{'s'[: phases > 1]}"


def _trained(mixed: Any) -> dict[str, float]:
    """Trained tokens of each source in the run."""
    plans = {name: source.plan for name, source in mixed.sources.items()}
    counts = mixed.counts()
    return {
        name: counts[name] * plan.trained_tokens / max(plan.rows, 1) for name, plan in plans.items()
    }
