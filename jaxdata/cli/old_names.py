"""Commands under their old names, which print what they always did; they go in version 0.2."""

from __future__ import annotations

from time import perf_counter

import click

from jaxdata.cli.preview import show
from jaxdata.cli.run_config import OVERRIDABLE, read_config, takes_config


@click.command(**OVERRIDABLE)
@takes_config
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def validate(config: str, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Old name of `jaxdata preview`."""
    return show(config, overrides, as_json=as_json, say_planned=False)


@click.command(**OVERRIDABLE)
@takes_config
def plan(config: str, overrides: tuple[str, ...]) -> None:
    """Old name of `jaxdata preview`, with a shorter table."""
    from rich.console import Console

    from jaxdata.config import build_rows
    from jaxdata.look.plan import plan_table

    started = perf_counter()
    rows = build_rows(read_config(config, overrides))
    seconds = perf_counter() - started
    Console().print(plan_table(rows))
    for dry in rows.table.exhaustions:
        click.echo(str(dry))
    documents = sum(source.plan.documents for source in rows.sources.values())
    click.echo(f"{documents:,} documents planned in {seconds:.2f} s; the plan is kept")
