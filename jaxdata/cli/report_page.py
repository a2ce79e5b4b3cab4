"""`jaxdata report DATASET-or-CONFIG`: a dataset and a run over it as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.progress import progress_bar
from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

if TYPE_CHECKING:
    from jaxdata.config import Config
    from jaxdata.look.report.gathering import Subject

_EPILOG = """\b
Examples:
  jaxdata report data/mine
  jaxdata report pretrain.yaml --dataset data/mine -o mine.html
  jaxdata report pretrain.yaml --state runs/pretrain --images charts
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_config
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
    state: str | None,
    output: Path,
    images: Path | None,
    step: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Write one page about a dataset, or about a run over it.

    CONFIG is a config, or a dataset: a folder, a URL or another tool's data. The page shows sources
    and lengths, packing strategies compared, the curriculum as planned and (with --state) as
    trained, a batch with its documents, samples to search, what was left out, and the tokenizer. It
    is one file without any link to a network. Lengths are read, and the beginnings of a few
    documents. Any field of the config can be set.
    """
    from jaxdata.look.report import check_installed, gather, write_images, write_page

    check_installed()
    if not output.absolute().parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent} to write it to")
    subject = _subject(config, overrides, state, step)
    with progress_bar("reading for the report") as progress:
        found = gather(subject, progress)
    write_page(found, output)
    click.echo(f"{output}: {output.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    if images is not None:
        click.echo(f"{images}: {', '.join(write_images(found, images))}")


def _subject(
    config: str, overrides: tuple[str, ...], state: str | None, step: int | None
) -> Subject:
    from jaxdata.config import open_data
    from jaxdata.look.report import Subject

    given = _settings(config, overrides)
    dataset = open_data(given)
    loader, notes = _loader(given, dataset, required=state is not None or step is not None)
    if state is not None:
        from jaxdata.look.states import read_state

        loader.set_state(read_state(state))
    if step is not None and step >= len(loader):
        raise click.UsageError(f"--step {step}: the run has steps 0 to {len(loader) - 1}")
    return Subject(
        dataset=dataset,
        split=given.split,
        seq_len=given.pack.seq_len,
        loader=loader,
        resumed=state is not None,
        step=step,
        notes=notes,
    )


def _settings(config: str, overrides: tuple[str, ...]) -> Config:
    """The config that was given, or one with nothing but the dataset that was given."""
    from jaxdata.config import load_config, parse_overrides
    from jaxdata.dataset.foreign import is_foreign

    if is_foreign(config) or "://" in config or Path(config).is_dir():
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
