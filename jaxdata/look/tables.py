"""The tables of `jaxdata validate`, for a terminal of 80 columns or for a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jaxdata.look.safe import printable

__all__ = ["plain_table", "validation_tables"]


def plain_table(title: str, left: list[str], right: list[str]) -> Table:
    """An empty table with columns aligned to the left and to the right."""
    table = Table(
        box=SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", padding=(0, 1)
    )
    for heading in left:
        table.add_column(Text(heading), overflow="fold", min_width=6)
    for heading in right:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table


def validation_tables(found: dict[str, Any]) -> Iterator[Table]:
    """A table a phase, the stretches where some source runs dry, and what an epoch holds."""
    for phase in found["phases"]:
        yield _phase_table(phase)
    if found["exhaustions"]:
        yield _stretch_table(found)
    yield _source_table(found["sources"])


def _phase_table(phase: dict[str, Any]) -> Table:
    first, rows, asked = phase["first_row"], phase["rows"], phase["rows_asked"]
    if first is None:
        where = f"none of its {asked or 0:,} rows is reached"
    else:
        where = f"rows {first:,} to {first + rows - 1:,}"
        where += f" of the {asked:,} asked for" if rows < (asked or 0) else ""
    title = f"phase {phase['phase']}: {where}, {phase['tokens']:,} tokens"
    dry = any(source["dry_at_row"] is not None for source in phase["sources"].values())
    columns = ["asked %", "planned %", "tokens", "rows", "epochs", *(["dry at row"] * dry)]
    table = plain_table(title, ["source"], columns)
    for name, source in phase["sources"].items():
        cells = [
            f"{100 * source['share_asked']:.2f}",
            f"{100 * source['share_planned']:.3f}",
            f"{source['tokens']:,}",
            f"{source['rows']:,}",
            f"{source['epochs']:.3f}",
        ]
        if dry:
            cells.append("" if source["dry_at_row"] is None else f"{source['dry_at_row']:,}")
        table.add_row(Text(printable(name)), *cells)
    return table


def _stretch_table(found: dict[str, Any]) -> Table:
    names = list(found["sources"])
    title = f"stretches of equal shares (on_exhaustion: {found['on_exhaustion']}), in % of tokens"
    table = plain_table(title, ["rows", "phase"], [printable(name) for name in names])
    for stretch in found["stretches"]:
        shares = (100 * stretch["shares_planned"].get(name, 0) for name in names)
        rows = f"{stretch['first_row']:,} to {stretch['stop_row'] - 1:,}"
        table.add_row(rows, str(stretch["phase"]), *(f"{share:.2f}" for share in shares))
    return table


def _source_table(sources: dict[str, Any]) -> Table:
    table = plain_table(
        "an epoch of each source",
        ["source"],
        ["documents", "tokens", "rows", "filled %", "cropped"],
    )
    for name, source in sources.items():
        epoch, dropped = source["epoch"], source["dropped"]
        filled = 1 - epoch["padding"] / max(epoch["slots"], 1)
        table.add_row(
            Text(printable(name)),
            f"{source['documents']:,}",
            f"{epoch['tokens']:,}",
            f"{epoch['rows']:,}",
            f"{100 * filled:.2f}",
            f"{dropped['tokens_cropped']:,}",
        )
    return table
