"""`jaxdata dedup`: documents left out as copies, or chosen by their fields; views, that is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.progress import progress_bar
from jaxdata.cli.options import Command, Names, options, options_of, was_typed
from jaxdata.dataset.views.selecting import select
from jaxdata.dedup import deduplicate
from jaxdata.dedup.settings import DedupSettings

if TYPE_CHECKING:
    from jaxdata.dataset.manifest import ViewEntry

_FRONT = (
    *("name", "sources", "split", "documents", "against", "near", "threshold", "decontaminate"),
    *("repeats", "where", "weight", "scores", "scores_key", "show", "remove", "workers"),
)
"""What `--help` shows."""
_COPIES, _EXECUTION = _HEADINGS = ("Copies", "Execution")
_CHOOSES = ("where", "weight", "scores", "scores_key", "seed")
_LOOKS = ("show", "examples", "remove")
_LEAVE = "leave it out"
_TAKES: dict[str, tuple[str, set[str], str]] = {
    "show": ("shows examples of a view", {"examples"}, _LEAVE),
    "remove": ("removes a view", {"sources", "split"}, _LEAVE),
    **dict.fromkeys(
        _CHOOSES,
        (
            "chooses documents by fields",
            {*_CHOOSES, "name", "sources", "split", "documents"},
            "make two views, the second of the first (--documents VIEW)",
        ),
    ),
}
"""An option that makes the command do something else than look for copies -> what, the options that
go with it, and what to do about others."""
_EPILOG = """\b
Examples:
  jaxdata dedup data/mine --sources web,wiki --against val --output-name d1
  jaxdata dedup data/mine --where "lang == 'en'" --output-name good
"""


class _Bytes(click.ParamType[Any]):
    """Bytes as `500M` or `2GiB`; the units are powers of 1,024."""

    name = "BYTES"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = value.upper().removesuffix("B").removesuffix("I")
        unit = "KMGT".find(number[-1:]) + 1 if number[-1:] else 0
        try:
            return int(float(number[:-1] if unit else number) * 1024**unit)
        except (ValueError, OverflowError):
            self.fail(f"{value!r}: expected a size like 500M or 2G", param, ctx)


@click.command(cls=Command, front=_FRONT, headings=_HEADINGS, epilog=_EPILOG)
@click.argument("dataset")
@click.option("--output-name", "name", metavar="NAME", help="What the view is called, like d1.")
@options_of(
    deduplicate,
    sources={
        "help": "Sources, the preferred first.  [default: all]",
        "type": Names(),
    },
    split={"help": "Split of --sources.", "metavar": "NAME"},
    documents={"help": "View that --sources are read through.", "metavar": "VIEW"},
    against={
        "help": "Splits, sources, files of benchmarks: what they have is dropped from --sources.",
        "type": Names(),
        "default": "",
    },
)
@options(DedupSettings, _COPIES)
@options_of(
    deduplicate,
    _COPIES,
    text_key="Key of the texts in files of --against; several with commas.",
)
@options_of(
    select,
    where={"help": "Keep the documents of which this holds.", "metavar": "EXPR"},
    weight={"help": "Times to list each, on average: 2.3 is 2 or 3.", "metavar": "EXPR"},
    scores={
        "help": "More fields: .parquet or .jsonl; .npy is `score`.",
        "metavar": "FILE",
    },
    scores_key={"help": "Field to find its rows by, not by order.", "metavar": "KEY"},
    seed=("Seed of --weight.", 0),
)
@options_of(
    deduplicate,
    _EXECUTION,
    workers={
        "help": "Processes.  [default: one per core]",
        "type": click.IntRange(1),
        "metavar": "N",
    },
    engine="Processes of this machine, or a Ray cluster.",
    ray_address={"help": "The cluster.  [default: $RAY_ADDRESS]", "metavar": "HOST:PORT"},
    memory={
        "help": "Memory that a process takes to sort, about.",
        "type": _Bytes(),
        "default": "1G",
    },
    unit_tokens=("Tokens of a unit of work, about.", 1),
)
@click.option("--show", metavar="VIEW", help="Show examples of what a view leaves out.")
@click.option(
    "--examples",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Of each source and reason, with --show.",
)
@click.option("--remove", metavar="VIEW", help="Remove a view; sources stay as they are.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_context
def dedup(context: click.Context, /, dataset: str, **given: Any) -> None:
    """Leave documents out: a view lists those that stay, and nothing is rewritten.

    DATASET is a folder or URL. Exact and near copies within and across --sources, and those of what
    --against names, are left out: of each cluster one document stays. Or those are kept of which
    --where holds: an expression over fields that the conversion kept (--keep), those of --scores,
    and tokens, document, source, file. To train on a view: documents: NAME in a config. The same
    command resumes an interrupted search.
    """
    lead = _lead(context)
    if lead == "show":
        _show(dataset, given["show"], given["examples"])
        return
    if lead == "remove":
        _remove(dataset, given["remove"], given["sources"], given["split"])
        return
    if given["name"] is None:
        raise click.UsageError("give --output-name NAME to make a view, or --show VIEW to look")
    view, as_json = str(given.pop("name")), given.pop("as_json")
    chooses = {name: given.pop(name) for name in _CHOOSES}
    if lead is not None:
        where = {name: given[name] for name in ("sources", "split", "documents")}
        with progress_bar("choosing documents") as progress:
            made = select(dataset, view, **chooses, **where, progress=progress)
        _say(view, made, as_json=as_json)
        return
    settings = {name: value for name, value in given.items() if name not in _LOOKS}
    _find(dataset, view, settings, as_json=as_json)


def _lead(context: click.Context) -> str | None:
    """The option that says what is done; None where copies are searched."""
    typed = [str(name) for name in context.params if was_typed(context, str(name))]
    lead = next((name for name in _TAKES if name in typed), None)
    if lead is None:
        return "where" if str(context.find_root().obj).startswith("jaxdata select ") else None
    does, takes, remedy = _TAKES[lead]
    for other in typed:
        if other not in {*takes, lead, "dataset", "as_json"}:
            raise click.UsageError(f"{_flag(lead)} {does}, and takes no {_flag(other)}: {remedy}")
    return lead


def _flag(name: str) -> str:
    return "--output-name" if name == "name" else f"--{name.replace('_', '-')}"


def _find(dataset: str, view: str, settings: dict[str, Any], *, as_json: bool) -> None:
    """Make a view without copies."""
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        report = deduplicate(dataset, view, stage=progress_bar, **given)
    except KeyboardInterrupt:
        raise click.Abort("Finished work is kept: the same command resumes") from None
    if not as_json:
        click.echo(report.summary())
    _say(report.name, report.views, as_json=as_json)


def _say(name: str, made: Mapping[str, ViewEntry], *, as_json: bool) -> None:
    """Print the account of a view, source by source, and how to train on it."""
    from jaxdata.dataset.views.source_view import account_lines
    from jaxdata.look.dataset_summary import described_view
    from jaxdata.look.terminal import printable

    if as_json:
        described = {source: described_view(entry) for source, entry in made.items()}
        click.echo(json.dumps({"view": name, "sources": described}, indent=1))
        return
    for source, entry in made.items():
        click.echo(printable(source))
        for line in account_lines(entry.account):
            click.echo(f"    {printable(line)}")
    click.echo(f"to train on it: documents: {name} in a config, or --documents {name}")


def _show(dataset: str, view: str, most: int) -> None:
    """Print copies beside what stays."""
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.dedup.examples import examples
    from jaxdata.look.terminal import printable

    for example in examples(open_dataset(dataset), view, most):
        for line in example.lines():
            click.echo(printable(line))


def _remove(dataset: str, view: str, sources: list[str] | None, split: str) -> None:
    """Remove a view from some sources, or from all of every split."""
    from jaxdata.dataset.manifest import read_manifest
    from jaxdata.dataset.views.writing import remove_views
    from jaxdata.look.terminal import printable
    from jaxdata.storage import open_store

    known = read_manifest(open_store(dataset)).sources
    chosen = sources and [name if name in known else f"{split}/{name}" for name in sources]
    removed = remove_views(dataset, view, chosen)
    click.echo(f"view {view} of {printable(', '.join(removed))} is removed")
