"""`jaxdata select` makes a view of documents, `jaxdata views` shows and removes those there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.progress import progress_bar
from jaxdata.cli.options import options_of
from jaxdata.dataset.views.selecting import select as make_view

if TYPE_CHECKING:
    from jaxdata.dataset.manifest import ViewEntry

_EPILOG = """\b
Examples:
  jaxdata select data/mine --where "lang == 'en' and score > 0.7" --output-name good
  jaxdata select data/mine --sources web --weight score --output-name weighted
  jaxdata select data/mine --scores scores.parquet --scores-key url --where "quality > 3" \\
      --documents d1 --output-name best
"""


@click.command(epilog=_EPILOG)
@click.argument("dataset")
@click.option("--output-name", "name", required=True, help="Name of the view, like good.")
@options_of(
    make_view,
    where="Documents to keep: an expression over their fields.",
    weight="Times that each document is listed on average: an expression. 2.3 lists it 2 or 3 "
    "times, the same in every epoch.",
    sources="Sources, separated by commas.  [default: all of the split]",
    split="Their split.",
    scores="File with further fields: the columns of a .parquet or .jsonl file, or a .npy file of "
    "numbers, whose field is `score`; in the order of the documents.",
    scores_key="Field by which the rows of --scores are found, instead of their order.",
    documents="View to choose from.  [default: all documents]",
    seed=("Of --weight.", 0),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def select(dataset: str, name: str, sources: str | None, as_json: bool, **given: Any) -> None:
    """Keep the documents that an expression chooses, as a view: no token is copied.

    Fields are those that the conversion kept (--keep), those of --scores, and built-in ones:
    tokens, document, source, file. Expressions have comparisons, in, is None, and, or, not,
    arithmetic, len(), lower(), startswith() and endswith(). Where a field is missing, a comparison
    with it is unknown, and the document is not kept.

    To train on the view, set `documents: NAME` in the config. jaxdata views shows and removes it.
    """
    chosen = None if sources is None else sources.split(",")
    with progress_bar("choosing documents") as progress:
        made = make_view(dataset, name, sources=chosen, progress=progress, **given)
    say_published(name, made, as_json=as_json)


@click.command(epilog="Example: jaxdata views data/mine --remove d1")
@click.argument("dataset")
@click.option("--remove", metavar="NAME", help="Remove the view of this name, with its columns.")
@click.option("--sources", help="Only of these: train/web,train/wiki.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def views(dataset: str, remove: str | None, sources: str | None, as_json: bool) -> None:
    """Show the views of a dataset, what each keeps and why the rest is dropped; or remove one.

    Removing a view changes no source: runs that read all documents go on, those that read the view
    can no longer be resumed.
    """
    from jaxdata.dataset.manifest import read_manifest
    from jaxdata.dataset.views.writing import remove_views
    from jaxdata.look.dataset_summary import described_view, view_lines
    from jaxdata.look.terminal import printable
    from jaxdata.storage import open_store

    chosen = None if sources is None else sources.split(",")
    if remove is not None:
        removed = remove_views(dataset, remove, chosen)
        click.echo(f"view {remove} of {printable(', '.join(removed))} is removed")
        return
    known = read_manifest(open_store(dataset)).sources.items()
    found = {
        source: {name: described_view(view) for name, view in entry.views.items()}
        for source, entry in known
        if entry.views and (chosen is None or source in chosen)
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for source, described in found.items():
        click.echo(printable(source))
        for name, view in described.items():
            for line in view_lines(name, view):
                click.echo(f"    {line}")
    if not found:
        click.echo("no views; jaxdata select and jaxdata dedup make them")


def say_published(name: str, made: Mapping[str, ViewEntry], *, as_json: bool) -> None:
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
