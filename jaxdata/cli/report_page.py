"""`jaxdata report DATASET-or-CONFIG`: a dataset and a run over it as one page of HTML."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.progress import progress_bar
from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

if TYPE_CHECKING:
    from jaxdata.config import Config
    from jaxdata.look.report import Report, Subject
    from jaxdata.look.run_log import LogReader

EVERY, RELOAD = 2, 5
"""seconds between two looks at the log of a run under way, and between two loads of its page"""
_EPILOG = """\b
Examples:
  jaxdata report data/mine
  jaxdata report pretrain.yaml               with the log in its train.output
  jaxdata report pretrain.yaml --live        again and again until it ends
  jaxdata report data/mine --run log.jsonl   of another trainer
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_config
@click.option(
    "--run",
    metavar="RUN",
    help="Show the log of this run: its folder, or JSON lines of loader.scalars() that any trainer "
    "wrote. By default the folder in train.output of CONFIG, if there is one.",
)
@click.option("--live", is_flag=True, help="Write the page again as the run goes on.")
@click.option(
    "--state",
    metavar="RUN",
    help="Show how far a run is: a loader's state, a checkpoint, or the run's output folder.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page.",
)
@click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the charts to this folder, as SVG that reads in light and dark.",
)
@click.option("--step", type=click.IntRange(0), help="Draw this batch; else the next one.")
def report(
    config: str,
    run: str | None,
    live: bool,
    state: str | None,
    output: Path,
    images: Path | None,
    step: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Write one page about a dataset, or about a run over it.

    CONFIG is a config, or a dataset: a folder, a URL or another tool's data. The page shows a run's
    loss over the shares of its sources, as its log and its plan have them, and what happened when;
    a batch with its documents; sources and lengths, packing strategies compared, samples to browse,
    what was left out, and the tokenizer. It is one file without any link to a network. Lengths are
    read, and the beginnings of a few documents. Any field of the config can be set.
    """
    from jaxdata.look.report import check_installed, gather, write_images, write_page

    check_installed()
    if not output.absolute().parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent} to write it to")
    subject, log = _subject(config, overrides, run, state, step)
    if live and log is None:
        raise click.UsageError("--live: there is no log of a run; give its folder with --run")
    with progress_bar("reading for the report") as progress:
        found = gather(subject, progress)
    write_page(found, output, reload=RELOAD if live else None)
    click.echo(f"{output}: {output.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    if live and log is not None:
        _follow(found, subject, log, output)
    if images is not None:
        click.echo(f"{images}: {', '.join(write_images(found, images))}")


def _follow(found: Report, subject: Subject, log: LogReader, output: Path) -> None:
    """Write the page again whenever the log has grown, the last time when the run has ended."""
    from jaxdata.look.report import add_run, write_page

    logged = subject.logged
    while logged is not None and logged.ended is None:
        time.sleep(EVERY)
        if records := log.new():
            for record in records:
                logged.add(record)
            _go_to(subject.loader, logged)
            add_run(found, subject)
            write_page(found, output, reload=None if logged.ended else RELOAD)


def _subject(
    config: str, overrides: tuple[str, ...], run: str | None, state: str | None, step: int | None
) -> tuple[Subject, LogReader | None]:
    """What the report is about, and the log that it follows."""
    from jaxdata.config import open_data
    from jaxdata.look.report import Subject
    from jaxdata.look.run_log import LoggedRun

    bare = _is_dataset(config)
    given = _settings(config, overrides, bare)
    dataset = open_data(given)
    log = _log(run) if run else None if bare else _log_of(given)
    required = state is not None or step is not None
    # A run of a dataset alone is not the one whose log is given.
    loader, notes = (
        (None, []) if bare and log and not required else _loader(given, dataset, required=required)
    )
    logged = None if log is None else LoggedRun(str(log.path))
    if log is not None and logged is not None:
        for record in log.new():
            logged.add(record)
    resumed = _resume(loader, state, log, logged, notes)
    if step is not None and loader is not None and step >= len(loader):
        raise click.UsageError(f"--step {step}: the run has steps 0 to {len(loader) - 1}")
    if log is not None and not resumed and loader is not None:
        log = logged = None  # of another run, as the notes say
    return Subject(
        dataset=dataset,
        split=given.split,
        seq_len=given.pack.seq_len,
        loader=loader,
        resumed=resumed,
        step=step,
        logged=logged,
        command=_command(),
        config="" if bare else _yaml(given),
        notes=notes,
    ), log


def _command() -> str:
    """The command as it was given, its options last."""
    context = click.get_current_context()
    words = ["jaxdata", "report", *context.params["overrides"]]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if isinstance(option, click.Option) and value not in (None, False, option.default):
            words += [option.opts[0], *([] if value is True else [str(value)])]
    return shlex.join(words)


def _yaml(given: Config) -> str:
    import yaml

    values = given.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _log(run: str) -> LogReader:
    from jaxdata.look.run_log import LogReader
    from jaxdata.storage import local_path

    return LogReader(local_path(run, "copy its log.jsonl from the bucket"))


def _log_of(given: Config) -> LogReader | None:
    """The log of the run that a config makes, if it has begun on this machine."""
    output = given.train.output
    return None if "://" in output or not Path(output, "log.jsonl").is_file() else _log(output)


def _resume(loader: Any, state: str | None, log: Any, logged: Any, notes: list[str]) -> bool:
    """Go where the run is; False if it has not begun, or if the log is of another run."""
    from jaxdata.base.errors import InputError, StateMismatch
    from jaxdata.look.states import read_state

    if loader is None:
        return False
    if state is not None:
        loader.set_state(read_state(state))
    elif log is not None:
        try:
            loader.set_state(read_state(log.path.parent))
        except StateMismatch as error:
            notes.append(f"The log of {log.path.parent} is of another run: {error}")
            return False
        except InputError:  # no checkpoint yet, or none of ours
            loader.reset()
    if logged is not None:
        _go_to(loader, logged)
    return state is not None or logged is not None


def _go_to(loader: Any, logged: Any) -> None:
    """Go to the step after the last that was logged, beyond the newest checkpoint."""
    if loader is None:
        return
    if logged.row is not None:
        loader.seek(row=min(logged.row, len(loader.rows)))
    elif logged.done > loader.step:
        loader.seek(step=min(logged.done, len(loader)))


def _is_dataset(config: str) -> bool:
    from jaxdata.dataset.foreign import is_foreign

    return is_foreign(config) or "://" in config or Path(config).is_dir()


def _settings(config: str, overrides: tuple[str, ...], bare: bool) -> Config:
    """The config that was given, or one with nothing but the dataset that was given."""
    from jaxdata.config import load_config, parse_overrides

    if bare:
        return load_config({}, parse_overrides(overrides) | {"dataset": config})
    return read_config(config, overrides)


def _loader(given: Config, dataset: Any, *, required: bool) -> tuple[Any, list[str]]:
    """The run of a config; None where its data makes none, and the reasons."""
    from jaxdata.base.errors import JaxdataError, SourceExhausted
    from jaxdata.config import load

    if given.split not in dataset.splits and not required:
        return None, [f"There is no run to show: the dataset has no split {given.split!r}."]
    try:
        return load(given), []
    except SourceExhausted as error:
        # The page shows how far it would get.
        halted = load(given, on_exhaustion="halt")
        return halted, [f"This run does not start as configured: {error}"]
    except JaxdataError as error:
        if required:
            raise
        return None, [f"There is no run to show: {error}"]
