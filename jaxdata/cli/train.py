"""`jaxdata train CONFIG` trains the small language model; `jaxdata train --watch RUN` looks on."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from jaxdata.cli.config import OVERRIDABLE, is_config, read_config, takes_config

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
@click.option("--watch", is_flag=True, help="Watch a run instead: its CONFIG, or its folder.")
@click.option("--once", is_flag=True, help="With --watch: print once and end.")
@click.option(
    "--control",
    metavar="FILE",
    help="Follow the weights in this YAML file, such as {web: 0.5, code: 0.5}: changed while the "
    "run goes on, they hold from the first row that is not begun. Looked at with each line of the "
    "log.",
)
@click.option("--coordinator", metavar="HOST:PORT", help="Address on which process 0 listens.")
@click.option("--num-processes", type=click.IntRange(1), help="Total number of processes.")
@click.option("--process-id", type=click.IntRange(0), help="Number of this process, from 0.")
def train(
    config: str,
    overrides: tuple[str, ...],
    watch: bool,
    once: bool,
    control: str | None,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
) -> int:
    """Train the small language model on the data of CONFIG, or watch a run.

    CONFIG is a YAML file, or the name of a config shipped with jaxdata, such as `demo`. Any of its
    fields can be set:

    \b
        jaxdata train pretrain --dataset data/mine --pack.seq_len 4096
        jaxdata train --watch runs/pretrain

    Uses all devices that JAX finds. On several machines, start one process on each, with the last
    three options. To watch a run only reads its folder: loss, tokens a second, waiting, shares
    against the plan; it ends with the run or with Ctrl-C.
    """  # noqa: D301 - \b is a mark of click's
    if watch:
        _watch(_folder(config, overrides), once)
        return 0
    if once:
        raise click.UsageError("--once is for --watch")
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
        done = run(settings, control)
        if done.halted:
            return HALTED
        if not process_id:
            last = ["--step", str(done.steps - 1), "--row", "0"]
            last += ["--state", settings.train.output] if control else []
            words = ["jaxdata", "inspect", "--config", config, *overrides, *last]
            click.echo(f"next: {shlex.join(words)}")
        return 0
    except KeyboardInterrupt as error:
        raise click.Abort(str(error)) from None


def run(config: Any, control: str | None = None) -> Any:
    """Train as a `Config` says, and a file of weights; call `jaxdata.train.devices.prepare` first.

    Args:
        config: the `Config`.
        control: the file of weights to follow, if any.
    """
    from jaxdata.base.progress import progress_bar, say
    from jaxdata.cli.preview import sources_of
    from jaxdata.config import Config, load, open_data, unscored
    from jaxdata.config.loading import scored_sets
    from jaxdata.feed.steering import WeightsFile
    from jaxdata.look.integrity import not_compared
    from jaxdata.look.terminal import printable
    from jaxdata.train.trainer import Data, Trainer

    dataset = open_data(config)
    if why := unscored(config, dataset):
        click.echo(printable(why))

    def open_loader(config: Config, split: str, sharding: Any) -> Any:
        extras = [*{*config.loader.extras, "source"}] if split == config.split else []
        # This model takes slots in their order.
        given = {"layout": "jaxdata", "extras": extras, "context_parallel": 1}
        return load(config, split, sharding=sharding, loader=given)

    def open_training(sharding: Any, state: Mapping[str, Any] | None) -> Any:
        if state is None:  # a run says it once
            for line in not_compared(dataset, sources_of(dataset, config)):
                click.echo(printable(line))
        return open_loader(config, config.split, sharding)

    data = Data(
        train=open_training,
        validation={
            name: partial(open_loader, config, config.scored[name])
            for name in scored_sets(config, dataset)
        },
        token_bytes=dataset.token_bytes,
    )
    with progress_bar("training") as advance:
        follows = None if control is None else WeightsFile(control)
        trainer = Trainer(
            config.train, data, seed=config.seed, control=follows, say=say, advance=advance
        )
        return trainer.run()


def _folder(config: str, overrides: tuple[str, ...]) -> str:
    """The folder of a run: that of its config, or the one that is named itself."""
    run = is_config(config) and not Path(config, "log.jsonl").is_file()
    return str(read_config(config, overrides).train.output) if run else config


def _watch(run: str, once: bool) -> None:
    """Print a page about a run, again and again where there is a terminal."""
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
            time.sleep(1)
            for record in log.new():
                view.add(record)
            live.update(view, refresh=True)
