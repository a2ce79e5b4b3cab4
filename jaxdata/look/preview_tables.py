"""The tables of `jaxdata preview`, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxdata.look.terminal import plain_table, printable


def preview_tables(found: dict[str, Any]) -> Iterator[Table]:
    """One table per phase, the intervals of equal shares if a source runs dry, and an epoch."""
    for phase in found["phases"]:
        yield _phase_table(phase)
    if found["exhaustions"]:
        yield _interval_table(found)
    yield _source_table(found["sources"])


def _phase_table(phase: dict[str, Any]) -> Table:
    first, rows, asked = phase["first_row"], phase["rows"], phase["rows_asked"]
    if first is None:
        where = f"none of its {asked or 0:,} rows is reached"
    else:
        where = f"rows {first:,} to {first + rows - 1:,}"
        where += f", {rows:,} of the {asked:,} asked for" if rows < (asked or 0) else ""
    title = f"phase {phase['phase']}: {where}, {phase['tokens']:,} tokens"
    dry = any(source["dry_at_row"] is not None for source in phase["sources"].values())
    loss = any("loss_tokens" in source for source in phase["sources"].values())
    counted = "with loss" if loss else "tokens"
    columns = ["asked %", "planned %", counted, "rows", "epochs", *(["dry at row"] * dry)]
    table = plain_table(title, ["source"], columns)
    for name, source in phase["sources"].items():
        cells = [
            f"{100 * source['share_asked']:.2f}",
            f"{100 * source['share_planned']:.3f}",
            f"{source['loss_tokens' if loss else 'tokens']:,}",
            f"{source['rows']:,}",
            f"{source['epochs']:.3f}",
        ]
        if dry:
            cells.append("" if source["dry_at_row"] is None else f"{source['dry_at_row']:,}")
        table.add_row(Text(printable(name)), *cells)
    return table


def _interval_table(found: dict[str, Any]) -> Table:
    names = list(found["sources"])
    title = f"intervals of equal shares (on_exhaustion: {found['on_exhaustion']}), in % of tokens"
    table = plain_table(title, ["rows", "phase"], [printable(name) for name in names])
    for interval in found["stretches"]:
        shares = (100 * interval["shares_planned"].get(name, 0) for name in names)
        rows = f"{interval['first_row']:,} to {interval['stop_row'] - 1:,}"
        table.add_row(rows, str(interval["phase"]), *(f"{share:.2f}" for share in shares))
    return table


def _source_table(sources: dict[str, Any]) -> Table:
    loss = any(each["masked"] and each["loss_tokens"] is not None for each in sources.values())
    columns = ["documents", "tokens", *(["with loss"] * loss), "rows", "filled %", "cropped"]
    table = plain_table("an epoch of each source", ["source"], columns)
    for name, source in sources.items():
        epoch, dropped = source["epoch"], source["dropped"]
        filled = 1 - epoch["padding"] / max(epoch["slots"], 1)
        table.add_row(
            Text(printable(name)),
            f"{source['documents']:,}",
            f"{epoch['tokens']:,}",
            *([_count(source["loss_tokens"])] * loss),
            f"{epoch['rows']:,}",
            f"{100 * filled:.2f}",
            f"{dropped['tokens_cropped']:,}",
        )
    return table


def _count(known: int | None) -> str:
    return "" if known is None else f"{known:,}"
