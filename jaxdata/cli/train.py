"""`jaxdata train CONFIG`: train the small language model on what a config describes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

__all__ = ["HALTED", "train"]

HALTED = 3
"""The exit code of a run that ended where a source ran dry."""


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Stopped runs go on from their newest checkpoint: give the same command again. Exits "
    "with 0 when all steps are done, and with 3 when a source ran dry and on_exhaustion is halt: a "
    "checkpoint is saved then, and the same command with --on_exhaustion renormalize, or with more "
    "--epochs, goes on.",
)
@click.argument("config")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--coordinator", metavar="HOST:PORT", help="where process 0 of several listens")
@click.option("--num-processes", type=click.IntRange(1), help="how many processes there are")
@click.option("--process-id", type=click.IntRange(0), help="which of them this one is")
def train(
    config: str,
    overrides: tuple[str, ...],
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
) -> int:
    """Train the small language model on the data that CONFIG describes.

    CONFIG is a YAML file, or the name of one that comes with jaxdata, like `demo`. Any of its
    fields can be set after it:

    \b
        jaxdata train pretrain --dataset data/mine --pack.seq_len 4096

    Uses all devices JAX finds. For several machines, start one process on each with the three
    options below.
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.config import load_config, parse_overrides
    from jaxdata.train.devices import Cluster, prepare

    settings = load_config(config, parse_overrides(overrides))
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given) and None in given:
        raise click.UsageError(
            "--coordinator, --num-processes and --process-id belong together: give all three"
        )
    prepare(
        deterministic=settings.train.deterministic,
        cluster=Cluster(coordinator, num_processes, process_id)  # type: ignore[arg-type]
        if coordinator
        else None,
        compilation_cache=Path(settings.train.output) / "compiled",
    )
    return HALTED if run(settings).halted else 0


def run(config: Any) -> Any:
    """Train as a `Config` says; `jaxdata.train.devices.prepare` comes before this."""
    from jaxdata.config import load, open_data
    from jaxdata.train.trainer import Data, Trainer

    dataset = open_data(config)
    scored = config.eval_split in dataset.splits
    if not scored:
        click.echo(f"{dataset.url} has no split {config.eval_split!r}: nothing is scored")

    def open_loader(split: str, sharding: Any) -> Any:
        return load(config, split, sharding=sharding, loader={"layout": "jaxdata"})

    data = Data(
        train=partial(open_loader, config.split),
        validation=partial(open_loader, config.eval_split) if scored else None,
        token_bytes=dataset.token_bytes,
    )
    return Trainer(config.train, data, seed=config.seed, say=partial(click.echo)).run()
