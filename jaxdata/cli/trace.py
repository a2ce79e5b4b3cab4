"""`jaxdata trace --config CONFIG`: the documents of a batch, or the steps of a document."""

from __future__ import annotations

import json
from typing import Any

import click

from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

_EPILOG = """\b
Examples:
  jaxdata trace --config pretrain --step 48123
  jaxdata trace --config pretrain --state runs/pretrain --row 3
  jaxdata trace --config pretrain --document web:1234
  jaxdata trace --config pretrain --find 'a sentence of it'
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_config
@click.option("--step", type=click.IntRange(0), help="Show the batch of this step, from 0.")
@click.option("--row", type=click.IntRange(0), help="Show only this row of the batch, from 0.")
@click.option(
    "--state",
    metavar="PATH",
    help="Use the batch sizes and skipped rows of this loader state: a JSON file, a checkpoint, or "
    "a run's output folder (its newest checkpoint). Without --step, show the next batch.",
)
@click.option("--document", metavar="SOURCE:ID", help="Show the steps that train this document.")
@click.option(
    "--find", metavar="TEXT", help="Show the steps that train documents that contain this text."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Maximum number of documents shown by --find.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(
    config: str,
    step: int | None,
    row: int | None,
    state: str | None,
    document: str | None,
    find: str | None,
    limit: int,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Show which documents are in a batch, or which steps train a document.

    For each segment of the batch: source and document, range of tokens, shard and record, input
    file and line, and its first words. A document is named by its source and its number there, as
    --step prints it. --document scans nothing; --find decodes every document. Any field of the
    config can be set.
    """
    if sum(value is not None for value in (document, find)) + (step is not None) > 1:
        raise click.UsageError("--step, --document and --find exclude each other: give one of them")
    if step is None and document is None and find is None and state is None:
        raise click.UsageError("give --step, --state, --document or --find")
    run = _open(config, overrides, state)
    if document is not None:
        found = run.documents([_parse(document)], None, 1)
    elif find is not None:
        found = run.documents(run.holding(find), find, limit)
    else:
        found = run.batch(step, row)
    if as_json:
        click.echo(json.dumps({"config": config, "next_row": run.next_row, **found}, indent=1))
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console

    from jaxdata.look.trace import batch_lines, document_lines

    console = Console()
    lines = batch_lines if "pieces" in found else document_lines
    for line in lines(found, console.width):
        console.print(line, soft_wrap=True)


def _parse(document: str) -> tuple[str, int]:
    source, colon, number = document.rpartition(":")
    if not colon or not number.isdecimal():
        raise click.UsageError(f"--document {document}: expected SOURCE:ID, like web:1234")
    return source, int(number)


def _open(config: str, overrides: tuple[str, ...], state: str | None) -> Any:
    from jaxdata.config import load, open_data
    from jaxdata.look.states import read_state
    from jaxdata.look.trace import Explanation

    settings = read_config(config, overrides)
    loader = load(settings)
    if state is not None:
        loader.set_state(read_state(state))
    return Explanation(loader, open_data(settings), resumed=state is not None)
