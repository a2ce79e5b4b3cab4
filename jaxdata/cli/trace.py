"""`jaxdata trace --config CONFIG`: which documents are in a batch, and when one is trained."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["trace"]

_EPILOG = """\b
Examples:
  jaxdata trace --config pretrain --step 48123
  jaxdata trace --config pretrain --state runs/pretrain --row 3
  jaxdata trace --config pretrain --document web:1234
  jaxdata trace --config pretrain --find 'a sentence of it'
"""


@click.command(context_settings={"ignore_unknown_options": True}, epilog=_EPILOG)
@click.option("--config", required=True, help="A YAML file, or the name of one that is shipped.")
@click.option("--step", type=click.IntRange(0), help="Whose batch to explain, counted from 0.")
@click.option("--row", type=click.IntRange(0), help="Only this row of the batch, counted from 0.")
@click.option(
    "--state",
    help="A loader's state: a JSON file, a checkpoint, or a run's output (its newest one). Batch "
    "sizes and skips are then those of that run; without --step, the batch that comes next.",
)
@click.option("--document", metavar="SOURCE:ID", help="Where a document is trained.")
@click.option("--find", metavar="TEXT", help="Where documents that hold a text are trained.")
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="With --find.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
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
    """Say which documents are in a batch, or in which batches a document is.

    Of each segment of the batch: its source and document, the range of tokens, the shard and
    record it lies in, the input file and line it came from, and how it begins. A document is named
    by its source and its number in it, as --step prints it. Nothing is scanned for --document;
    --find decodes every document. Fields of the config can be set as everywhere.
    """
    if sum(value is not None for value in (document, find)) + (step is not None) > 1:
        raise click.UsageError("--step, --document and --find: give one of them")
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

    from jaxdata.look.traced import batch_lines, document_lines

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
    from jaxdata.config import load, load_config, open_data, parse_overrides
    from jaxdata.look.explanation import Explanation
    from jaxdata.look.states import read_state

    settings = load_config(config, parse_overrides(overrides))
    loader = load(settings)
    if state is not None:
        loader.set_state(read_state(state))
    return Explanation(loader, open_data(settings), resumed=state is not None)
