"""What a command says of the view that it made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jaxdata.dataset.manifest import ViewEntry


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
