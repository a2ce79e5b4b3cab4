"""`jaxdata plan --config CONFIG --hosts N`: prepare a run's plan, and say what reading it costs."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import click

from jaxdata.base.wording import counted
from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config


@click.command(
    **OVERRIDABLE, epilog="Exit code 0; 1 where the cache cannot hold what a host has open."
)
@takes_config
@click.option("--hosts", type=click.IntRange(min=1), help="Hosts that share every batch.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Rows of the global batch; else the config's."
)
@click.option(
    "--page-bytes",
    type=click.IntRange(min=1),
    default=2**20,
    show_default=True,
    help="Bytes of a cached page.",
)
@click.option(
    "--cache-bytes",
    type=click.IntRange(min=1),
    help="Size of a host's cache; refused if too small.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def plan(config: str, overrides: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Prepare and keep a run's plan; with --hosts, say what reading it from far away costs.

    For each source and in total: GETs, bytes downloaded over those of the dataset, pages that a
    host holds at a time, the cache for them, and what comes before the first batch. Two ways are
    compared: pages that a host fetches once and keeps while it needs them, and exact ranges. Only
    lengths and the plan are read; figures of pages are right to a few per cent.

    \b
        jaxdata plan --config pretrain.yaml --hosts 64 --batch-size 512
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.config import build_rows

    read, started = read_config(config, overrides), perf_counter()
    rows = build_rows(read)
    seconds = perf_counter() - started
    asked = given["hosts"] or given["batch_size"] or given["cache_bytes"]
    costs = _costs(rows, read, given) if asked else None
    if as_json:
        click.echo(json.dumps(_as_json(rows, costs), indent=1))
    else:
        _print(rows, seconds, costs)
    return 0 if costs is None or _fits(costs) else 1


def _costs(rows: Any, config: Any, given: dict[str, Any]) -> Any:
    from jaxdata.look.read_costs import Cluster, read_costs

    sizes = config.loader.batch_size
    largest = sizes if isinstance(sizes, int) else max(size for _, size in sizes)
    given |= {"batch_size": given["batch_size"] or largest, "hosts": given["hosts"] or 1}
    return read_costs(rows.table, Cluster(**given))


def _fits(costs: Any) -> bool:
    from jaxdata.look.read_costs import too_small

    return too_small(costs) is None


def _as_json(rows: Any, costs: Any) -> dict[str, Any]:
    from jaxdata.look.read_costs import as_json

    counts = rows.counts()
    sources = {name: {"rows": counts[name]} for name in rows.sources}
    found = {"rows": len(rows), "sources": sources}
    return found if costs is None else {**found, "read_costs": as_json(costs)}


def _print(rows: Any, seconds: float, costs: Any) -> None:
    from rich.console import Console

    from jaxdata.look.preview import plan_table

    console = Console()
    console.print(plan_table(rows))
    for dry in rows.table.exhaustions:
        click.echo(str(dry))
    documents = sum(source.plan.documents for source in rows.sources.values())
    click.echo(f"{counted(documents, 'document')} planned in {seconds:.2f} s; the plan is kept")
    if costs is not None:
        click.echo()
        _print_costs(costs, console)


def _print_costs(costs: Any, console: Any) -> None:
    from jaxdata.look.read_costs import LEGEND, cost_tables, dear, too_small

    for table in cost_tables(costs):
        console.print(table)
    click.echo(LEGEND)
    for warning in dear(costs):
        click.echo(f"dear: {warning}")
    if refused := too_small(costs):
        click.echo(f"too small: {refused}")
