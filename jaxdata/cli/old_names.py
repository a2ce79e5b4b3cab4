"""Commands under their old names, which print what they always did; they go in version 0.2."""

from __future__ import annotations

import click

from jaxdata.cli.arguments.run_config import OVERRIDABLE, takes_config
from jaxdata.cli.preview import show


@click.command(**OVERRIDABLE)
@takes_config
@click.option("--state", metavar="PATH", help="Judge the rest of a run under way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def validate(config: str, state: str | None, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Old name of `jaxdata preview`."""
    return show(config, overrides, state, as_json=as_json, say_planned=False)
