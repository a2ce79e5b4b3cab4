"""`jaxdata plan`: plan a run once, for all the hosts that will open it."""

from __future__ import annotations

from time import perf_counter

import click

__all__ = ["plan"]


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Nothing is read but document lengths. Planning again takes no time: it is kept.",
)
@click.option("--config", required=True, help="A YAML file, or the name of one that is shipped.")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def plan(config: str, overrides: tuple[str, ...]) -> None:
    """Plan the rows of a run, with all cores, and keep the plan beside the data.

    A thousand hosts that start afterwards only open it. Prints what the run will read: any field
    of the config can be set after it, as for `jaxdata train`:

    \b
        jaxdata plan --config pretrain.yaml --pack.seq_len 4096
    """  # noqa: D301 - \b is a mark of click's
    from rich.console import Console

    from jaxdata.config import build_rows, load_config, parse_overrides
    from jaxdata.look.plan import plan_table

    started = perf_counter()
    rows = build_rows(load_config(config, parse_overrides(overrides)))
    seconds = perf_counter() - started
    Console().print(plan_table(rows))
    for dry in rows.table.exhaustions:
        click.echo(str(dry))
    documents = sum(source.plan.documents for source in rows.sources.values())
    click.echo(f"{documents:,} documents planned in {seconds:.2f} s; the plan is kept")
