"""`jaxdata views DATASET`: the views of a dataset, and removing one."""

from __future__ import annotations

import json

import click


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
