"""`jaxdata check --config CONFIG`: prove on the user's own data what jaxdata promises."""

from __future__ import annotations

import time
from typing import Any

import click

__all__ = ["check"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--config", required=True, help="a YAML file, or the name of one jaxdata has")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="how many steps to look at, half of them the first, half anywhere",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="where anywhere is")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def check(config: str, steps: int, seed: int, overrides: tuple[str, ...]) -> int:
    """Prove on the data of a config what jaxdata promises, and say what was proved.

    \b
    plan       each target of each document is trained exactly once an epoch
    mixture    no row of a source is left out or comes twice
    contents   batches hold what the documents hold, slot by slot
    resuming   a state restores to the same batches, at every step
    hosts      several hosts together make the batches that one makes
    workers    worker processes make the same batches

    Of large datasets it looks at a part; --steps says how large. Exits with 1 where something
    does not hold. Fields of the config can be set as everywhere:

    \b
        jaxdata check --config pretrain --dataset data/mine --pack.seq_len 4096
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.config import load, load_config, parse_overrides
    from jaxdata.testing import prove

    settings = load_config(config, parse_overrides(overrides))

    def open_loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> Any:
        ours = {"num_workers": num_workers, "layout": "jaxdata"}  # rows do not depend on them
        return load(settings, shard=shard, loader=ours)

    started, failed = time.perf_counter(), 0
    for proof in prove(open_loader, steps=steps, seed=seed):
        click.echo(f"{'ok     ' if proof.holds else 'FAILED '} {proof.name:<9} {proof.says}")
        failed += not proof.holds
    took = f"{time.perf_counter() - started:.1f} s"
    click.echo(f"{failed} of the promises do not hold ({took})" if failed else f"proved in {took}")
    return 1 if failed else 0
