"""`jaxdata dedup`: documents left out as copies, or chosen by their fields; views, that is."""

from collections.abc import Mapping
from typing import Any

import click

from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.options import JSON, command, option, options_of, refuse, resumable, was_typed
from jaxdata.dataset.manifest import ViewEntry, read_manifest
from jaxdata.dataset.views.selecting import select
from jaxdata.dataset.views.source_view import account_lines, described_view
from jaxdata.dataset.views.writing import remove_views
from jaxdata.dedup.api import deduplicate
from jaxdata.dedup.settings import DedupSettings
from jaxdata.look.terminal import printable, show
from jaxdata.storage import open_store

_FRONT = (
    *("name", "sources", "split", "documents", "against", "near", "threshold", "decontaminate"),
    *("repeats", "where", "weight", "remove", "workers"),
)
"""What `--help` shows."""
_COPIES, _EXECUTION = _HEADINGS = ("Copies", "Execution")
_CHOOSES = ("where", "weight")
_PYTHON = {"ngram", "bands", "rows"}
"""settings that no option has: a default serves, and :func:`jaxdata.deduplicate` takes them"""
_PLACES = {"sources", "split", "documents"}
_EPILOG = """\b
Examples:
  jaxdata dedup data/mine --sources web,wiki --against val --output-name d1
  jaxdata dedup data/mine --where "lang == 'en'" --output-name good
"""


@command(
    front=_FRONT,
    also=("as_json",),
    headings=_HEADINGS,
    epilog=_EPILOG,
    options=[
        *options_of(
            deduplicate,
            sources="Sources, the preferred first.  [default: all]",
            split={"help": "Split of --sources.", "metavar": "NAME"},
            documents={"help": "View that --sources are read through.", "metavar": "VIEW"},
            against="Splits, sources, files of benchmarks: what they have is dropped from "
            "--sources.",
        ),
        *(
            option(name, field, _COPIES)
            for name, field in DedupSettings.model_fields.items()
            if name not in _PYTHON
        ),
        *options_of(
            deduplicate,
            _COPIES,
            text_key="Key of the texts in files of --against; several with commas.",
        ),
        *options_of(
            select,
            where={"help": "Keep the documents of which this holds.", "metavar": "EXPR"},
            weight={"help": "Times to list each, on average: 2.3 is 2 or 3.", "metavar": "EXPR"},
        ),
        *options_of(
            deduplicate,
            _EXECUTION,
            workers={"help": "Processes.  [default: one per core]", "ge": 1},
            engine="Processes of this machine, or the Ray cluster of $RAY_ADDRESS.",
        ),
    ],
)
def dedup(
    dataset: str,
    name: str | None = setting(
        None, "What the view is called, like d1.", flag="--output-name", metavar="NAME"
    ),
    remove: str | None = setting(None, "Remove a view; sources stay as they are.", metavar="VIEW"),
    as_json: bool = JSON,
    **given: Any,
) -> None:
    """Leave documents out: a view lists those that stay, and nothing is rewritten.

    DATASET is a folder or URL. Exact and near copies within and across --sources, and those of what
    --against names, are left out: of each cluster one document stays. Or those are kept of which
    --where holds: an expression over fields that the conversion kept (--keep), and tokens,
    document, source, file. To train on a view: documents: NAME in a config. The same
    command resumes an interrupted search.
    """
    if remove is not None:
        _refuse_but("remove", {"sources", "split"}, "removes a view", "leave it out")
        _remove(dataset, remove, given["sources"], given["split"])
        return
    if name is None:
        raise click.UsageError("give --output-name NAME to make a view, or --remove VIEW")
    context, chooses = click.get_current_context(), {each: given.pop(each) for each in _CHOOSES}
    if first := next((each for each in _CHOOSES if was_typed(context, each)), None):
        two = "make two views, the second of the first (--documents VIEW)"
        _refuse_but(first, {*_CHOOSES, "name", *_PLACES}, "chooses documents by fields", two)
        chooses |= {each: given[each] for each in _PLACES}
        with progress_bar("choosing documents") as progress:
            made: Mapping[str, ViewEntry] = select(dataset, name, **chooses, progress=progress)
    else:
        settings = {each: value for each, value in given.items() if value is not None}
        with resumable():
            report = deduplicate(dataset, name, stage=progress_bar, **settings)
        made = report.views
        if not as_json:
            click.echo(report.summary())
    say_views(name, made, as_json=as_json)


def _refuse_but(lead: str, goes: set[str], does: str, remedy: str) -> None:
    """Refuse what does not go with an option that makes the command do something else."""
    others = {*click.get_current_context().params} - goes - {"dataset", "as_json", lead}
    refuse(others, f"--{lead} {does}, and takes no {{}}: {remedy}")


def say_views(name: str, made: Mapping[str, ViewEntry], *, as_json: bool = False) -> None:
    """Print the account of a view, source by source, and how to train on it."""
    lines = list[str]()
    for source, entry in made.items():
        lines += [source, *(f"    {line}" for line in account_lines(entry.account))]
    lines.append(f"to train on it: documents: {name} in a config, or --documents {name}")
    described = {source: described_view(entry) for source, entry in made.items()}
    show(map(printable, lines), {"view": name, "sources": described}, as_json=as_json)


def _remove(dataset: str, view: str, sources: list[str] | None, split: str) -> None:
    """Remove a view from some sources, or from all of every split."""
    known = read_manifest(open_store(dataset)).sources
    chosen = sources and [name if name in known else f"{split}/{name}" for name in sources]
    removed = remove_views(dataset, view, chosen)
    click.echo(f"view {view} of {printable(', '.join(removed))} is removed")
