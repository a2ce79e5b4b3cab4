"""`jaxdata train CONFIG` trains the small language model on the data of a config, `top` watches."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

HALTED = 3
"""Exit code of a run that halted where a source ran dry."""


@click.command(
    **OVERRIDABLE,
    epilog="To resume a stopped run from its newest checkpoint, run the same command again. Exit "
    "code 0 if all steps are done; 3 if a source ran dry and on_exhaustion is halt: a checkpoint "
    "is saved, and the same command with --on_exhaustion renormalize, or with more --epochs, "
    "continues.",
)
@takes_config
@click.option("--coordinator", metavar="HOST:PORT", help="Address on which process 0 listens.")
@click.option("--num-processes", type=click.IntRange(1), help="Total number of processes.")
@click.option("--process-id", type=click.IntRange(0), help="Number of this process, from 0.")
def train(
    config: str,
    overrides: tuple[str, ...],
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
) -> int:
    """Train the small language model on the data of CONFIG.

    CONFIG is a YAML file, or the name of a config shipped with jaxdata, such as `demo`. Any of its
    fields can be set:

    \b
        jaxdata train pretrain --dataset data/mine --pack.seq_len 4096

    Uses all devices that JAX finds. On several machines, start one process on each, with the three
    options below.
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.train.devices import Cluster, prepare
    from jaxdata.train.output_folder import COMPILED, output_path

    settings = read_config(config, overrides)
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given) and None in given:
        raise click.UsageError(
            "--coordinator, --num-processes and --process-id require each other: give all three"
        )
    prepare(
        deterministic=settings.train.deterministic,
        cluster=Cluster(coordinator, num_processes, process_id)  # type: ignore[arg-type]
        if coordinator
        else None,
        compilation_cache=output_path(settings.train.output) / COMPILED,
    )
    try:
        done = run(settings)
        if done.halted:
            return HALTED
        if not process_id:
            last = ["--step", str(done.steps - 1), "--row", "0"]
            words = ["jaxdata", "trace", "--config", config, *overrides, *last]
            click.echo(f"next: {shlex.join(words)}")
        return 0
    except KeyboardInterrupt as error:
        raise click.Abort(str(error)) from None


def run(config: Any) -> Any:
    """Train as a `Config` says; call `jaxdata.train.devices.prepare` first."""
    from jaxdata.base.progress import progress_bar, say
    from jaxdata.cli.preview import sources_of
    from jaxdata.config import Config, load, open_data, unscored
    from jaxdata.look.integrity import not_compared
    from jaxdata.look.terminal import printable
    from jaxdata.train.trainer import Data, Trainer

    dataset = open_data(config)
    scored = config.eval_split in dataset.splits
    if why := unscored(config, dataset):
        click.echo(printable(why))

    def open_loader(config: Config, split: str, sharding: Any) -> Any:
        ours = {"layout": "jaxdata", "context_parallel": 1}  # this model takes slots in their order
        return load(config, split, sharding=sharding, loader=ours)

    def open_training(sharding: Any, state: Mapping[str, Any] | None) -> Any:
        if state is None:  # a run says it once
            for line in not_compared(dataset, sources_of(dataset, config)):
                click.echo(printable(line))
        return open_loader(config, config.split, sharding)

    data = Data(
        train=open_training,
        validation=partial(open_loader, config, config.eval_split) if scored else None,
        token_bytes=dataset.token_bytes,
    )
    with progress_bar("training") as advance:
        return Trainer(config.train, data, seed=config.seed, say=say, advance=advance).run()


@click.command()
@click.argument("run")
@click.option("--once", is_flag=True, help="Print once and end, as where there is no terminal.")
@click.option(
    "--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between."
)
def top(run: str, once: bool, every: float) -> None:
    """Watch a run of `jaxdata train`: loss, tokens a second, waiting, shares against the plan.

    RUN is its folder, the train.output of its config. The command only reads, from any machine that
    sees the folder, and ends with the run or with Ctrl-C.

    \b
        jaxdata top runs/pretrain
    """  # noqa: D301 - \b is a mark of click's
    from rich.console import Console
    from rich.live import Live

    from jaxdata.look.top import LogReader, RunView
    from jaxdata.storage import local_path

    log, view = LogReader(local_path(run, "watch it on the machine where it runs")), RunView(run)
    for record in log.new():
        view.add(record)
    if once or not sys.stdout.isatty():
        Console().print(view)
        return
    with Live(view, auto_refresh=False) as live:
        while not view.ended:
            time.sleep(every)
            for record in log.new():
                view.add(record)
            live.update(view, refresh=True)
