"""`jaxdata views` shows the views of a dataset."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("dataset")
@click.option("--sources", help="Only of these: train/web,train/wiki.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def views(dataset: str, sources: str | None, as_json: bool) -> None:
    """Show the views of a dataset, what each keeps and why the rest is dropped."""
    from jaxdata.dataset.manifest import read_manifest
    from jaxdata.look.dataset_summary import described_view, view_lines
    from jaxdata.look.terminal import printable
    from jaxdata.storage import open_store

    chosen = None if sources is None else sources.split(",")
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
        click.echo("no views; jaxdata dedup makes them")
