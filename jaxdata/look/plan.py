"""What a run will read, source by source, as a table for a terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdata.rows.table import sections

__all__ = ["plan_table", "row_shapes"]


def plan_table(mixed: Any) -> Table:
    """One line a source of a mixture (what `jaxdata.mix` returns).

    Rows and epochs are those of the whole run, the share is of its trained tokens; documents,
    tokens and fill are of one epoch.
    """
    table = Table(box=SIMPLE_HEAD, title=_title(mixed), title_justify="left")
    table.add_column("source")
    for heading in ("documents", "tokens", "fill %", "dropped", "rows", "epochs", "share %"):
        table.add_column(heading, justify="right")
    epochs, trained = mixed.epochs(), _trained(mixed)
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
    phases = len(mixed.table.phases)
    return f"{len(mixed):,} rows of {row_shapes(mixed)} in {phases} phase{'s'[: phases > 1]}"


def row_shapes(mixed: Any) -> str:
    """`1,024`, or where an amendment changes it `1,024, from row 40,000 on 8,192`."""
    first, *others = sections(mixed.table)
    changes = [f", from row {start:,} on {part.seq_len:,}" for start, part in others]
    return f"{first[1].seq_len:,}{''.join(changes)}"


def _trained(mixed: Any) -> dict[str, int]:
    """Trained tokens of each source in the run."""
    return {name: each.trained_tokens for name, each in mixed.table.amounts(len(mixed)).items()}
