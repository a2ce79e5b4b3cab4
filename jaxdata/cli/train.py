"""`jaxdata train CONFIG`: the small language model."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxdata import look
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import command
from jaxdata.look.terminal import printable

if TYPE_CHECKING:
    from jaxdata.config import Config

HALTED = 3
"""Exit code of a run that halted where a source ran dry."""


@command(
    cls=RunCommand,
    takes="CONFIG",
    epilog="To resume a stopped run from its newest checkpoint, run the same command again. Exit "
    "code 0 if all steps are done; 3 if a source ran dry and on_exhaustion is halt: a checkpoint "
    "is saved, and the same command with --on_exhaustion renormalize, or with more --epochs, "
    "continues.",
)
def train(
    given: Given,
    control: str | None = setting(
        None,
        "Follow the weights in this YAML file, {web: 0.5, code: 0.5}: changed while the run goes "
        "on, they hold from the first row that is not begun.",
        metavar="FILE",
    ),
    coordinator: str | None = setting(
        None, "Address on which process 0 listens.", metavar="HOST:PORT"
    ),
    num_processes: int | None = setting(None, "Total number of processes.", ge=1),
    process_id: int | None = setting(None, "Number of this process, from 0.", ge=0),
) -> int:
    """Train the small language model on the data of CONFIG.

    CONFIG is a YAML file, or the name of a config shipped with jaxdata, such as `demo`. Any of its
    fields can be set:

    \b
        jaxdata train pretrain --dataset data/mine --pack.seq_len 4096

    Uses all devices that JAX finds. On several machines, start one process on each, with the last
    three options. To look at a run under way: jaxdata report CONFIG --live.
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.train.devices import prepare

    settings, cluster = given.settings(), (coordinator, num_processes, process_id)
    if any(value is not None for value in cluster) and None in cluster:
        raise click.UsageError(
            "--coordinator, --num-processes and --process-id require each other: give all three"
        )
    prepare(
        deterministic=settings.train.deterministic,
        cluster=cluster if coordinator else None,  # type: ignore[arg-type]
        compilation_cache=Path(settings.train.output) / "compiled",
    )
    try:
        step, halted = _run(settings, control)
    except KeyboardInterrupt as error:
        raise click.Abort(str(error)) from None
    if halted:
        return HALTED
    if not process_id:
        last = ["--step", str(step - 1), "--row", "0"]
        last += ["--state", settings.train.output] if control else []
        words = ["jaxdata", "inspect", "--config", str(given.config), *given.overrides, *last]
        click.echo(f"next: {shlex.join(words)}")
    return 0


def _run(config: "Config", control: str | None) -> tuple[int, str | None]:
    """Train as a config says, following a file of weights: the steps done, and why it halted."""
    from jaxdata.base.progress import progress_bar, say
    from jaxdata.config.loading import load, open_data, scored_sets, sources_of, unscored
    from jaxdata.feed.steering import WeightsFile
    from jaxdata.train.devices import shardings
    from jaxdata.train.trainer import Trainer

    dataset = open_data(config)
    if why := unscored(config, dataset):
        click.echo(printable(why))

    def loader_of(split: str) -> Any:
        extras = [*{*config.loader.extras, "source"}] if split == config.split else []
        # This model takes slots in their order.
        given = {"layout": "jaxdata", "extras": extras, "context_parallel": 1}
        return load(config, split, sharding=shardings()[0], loader=given)

    with progress_bar("training") as advance:
        trainer = Trainer(
            config.train,
            train=loader_of(config.split),
            validation={n: loader_of(config.scored[n]) for n in scored_sets(config, dataset)},
            token_bytes=dataset.token_bytes,
            seed=config.seed,
            control=None if control is None else WeightsFile(control),
            say=say,
            advance=advance,
        )
        if not trainer.step:  # a run says it once
            for line in look.preview.not_compared(dataset, sources_of(dataset, config)):
                say(printable(line))
        halted = trainer.run()
        return trainer.step, halted
