"""`jaxdata report DATASET-or-CONFIG`: a dataset and a run over it as one page of HTML."""

import time
from pathlib import Path

import click

from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import command

EVERY, RELOAD = 2, 5
"""seconds between two looks at the log of a run under way, and between two loads of its page"""
_EPILOG = """\b
Examples:
  jaxdata report data/mine
  jaxdata report pretrain.yaml               with the log in its train.output
  jaxdata report pretrain.yaml --live        again and again until it ends
  jaxdata report data/mine --run log.jsonl   of another trainer
"""


@command(cls=RunCommand, epilog=_EPILOG)
def report(
    given: Given,
    run: str | None = setting(
        None,
        "Show the log of this run: its folder, or JSON lines of loader.scalars() that any trainer "
        "wrote.  [default: train.output of CONFIG]",
        metavar="RUN",
    ),
    live: bool = setting(False, "Write the page again as the run goes on."),
    state: str | None = setting(
        None, "Show how far a run is: a loader's state, a checkpoint, or its folder.", metavar="RUN"
    ),
    output: Path = setting(Path("report.html"), "The page.", flag="-o --output", metavar="FILE"),
    images: Path | None = setting(
        None, "Also write the charts to this folder, as SVG.", metavar="DIR"
    ),
    step: int | None = setting(None, "Draw this batch; else the next one.", ge=0),
) -> None:
    """Write one page about a dataset, or about a run over it.

    CONFIG is a config, or a dataset: a folder, a URL or another tool's data. The page shows a run's
    loss over the shares of its sources, as its log and its plan have them, and what happened when;
    a batch with its documents; sources and lengths, packing strategies compared, samples to browse,
    what was left out, and the tokenizer. It is one file without any link to a network. Lengths are
    read, and the beginnings of a few documents. Any field of the config can be set.
    """
    from jaxdata.look import report as made

    made.check_installed()
    if not output.absolute().parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent} to write it to")
    subject = made.Subject.of(
        given.settings(),
        run=run,
        state=state,
        step=step,
        alone=given.config is None,
        command=str(click.get_current_context().find_root().obj),
    )
    logged = subject.logged
    if live and logged is None:
        raise click.UsageError("--live: there is no log of a run; give its folder with --run")
    with progress_bar("reading for the report") as progress:
        found = made.gather(subject, progress)
    made.write_page(found, output, reload=RELOAD if live else None)
    click.echo(f"{output}: {output.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    while live and logged is not None and logged.ended is None:
        time.sleep(EVERY)
        if logged.update():
            subject.follow()
            made.add_run(found)
            made.write_page(found, output, reload=None if logged.ended else RELOAD)
    if images is not None:
        click.echo(f"{images}: {', '.join(made.write_images(found, images))}")
