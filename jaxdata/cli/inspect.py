"""`jaxdata inspect`: a dataset, a document and the steps that train it, a batch, or one row."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.wording import counted
from jaxdata.cli.config import OVERRIDABLE, Given, takes_data

if TYPE_CHECKING:
    from jaxdata.config import Config

_EPILOG = """\b
Examples:
  jaxdata inspect data/mine
  jaxdata inspect data/mine --document web:17
  jaxdata inspect data/mine --row 3 --pack.seq_len 512
  jaxdata inspect pretrain --dataset data/mine --step 48123
  jaxdata inspect pretrain --dataset data/mine --document web:17
  jaxdata inspect pretrain --state runs/mine --find 'a sentence of it'
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_data
@click.option(
    "--document",
    metavar="[SPLIT/]SOURCE:ID",
    help="Show this document decoded; of a CONFIG, also the steps that train it.",
)
@click.option("--find", metavar="TEXT", help="Show the steps of documents that contain this text.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Most documents that --find shows.",
)
@click.option("--step", type=click.IntRange(0), help="Show the documents of this batch, from 0.")
@click.option(
    "--state",
    metavar="PATH",
    help="Take batch sizes and skipped rows from a loader's state, a checkpoint or a run's folder; "
    "alone, show the next batch.",
)
@click.option(
    "--row",
    type=click.IntRange(0),
    help="Draw this row of the run; with --step or --state, show only this row of the batch.",
)
@click.option("--views", is_flag=True, help="Show only the views: what each keeps and drops.")
@click.option("--statistics", is_flag=True, help="Also show all statistics of the conversion.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(
    given: Given,
    document: str | None,
    find: str | None,
    limit: int,
    step: int | None,
    state: str | None,
    row: int | None,
    views: bool,
    statistics: bool,
    as_json: bool,
) -> None:
    """Show a dataset, a document, a batch or a row.

    A dataset: sources with documents, tokens and lengths, views, tokenizer, statistics; of a CONFIG
    also what each packing strategy makes of it. A batch: for each segment its document, tokens,
    shard and record, input file and line. A row: a colour or letter for each segment, dots for
    padding, lower case without loss. Any field of a config can be set.
    """
    if sum(value is not None for value in (document, find, step)) > 1:
        raise click.UsageError("--step, --document and --find exclude each other: give one of them")
    settings = given.settings()
    if document is not None:
        run = None if given.config is None else settings
        _show(_document(settings, document, run, state), given, as_json)
    elif find is not None:
        run = _open(settings, state)
        _show(run.documents(run.holding(find), find, limit), given, as_json)
    elif step is not None or state is not None:
        _show(_open(settings, state).batch(step, row), given, as_json)
    elif row is not None:
        _show_row(settings, row, as_json)
    elif views:
        _show_views(settings, as_json)
    else:
        _show_dataset(settings, given.config is not None, statistics, as_json)


def _open(settings: Config, state: str | None) -> Any:
    from jaxdata.config import load, open_data
    from jaxdata.look.states import read_state
    from jaxdata.look.trace import Explanation

    loader = load(settings)
    if state is not None:
        loader.set_state(read_state(state))
    return Explanation(loader, open_data(settings), resumed=state is not None)


def _document(
    settings: Config, document: str, run: Config | None, state: str | None
) -> dict[str, Any]:
    """A document decoded; where there is a run, also its places there."""
    from jaxdata.config import open_data
    from jaxdata.look.document import describe_document
    from jaxdata.look.trace import decoder

    name, colon, number = document.rpartition(":")
    if not (colon and name and number.isdecimal()):
        raise click.UsageError(
            f"--document {document}: expected [SPLIT/]SOURCE:ID, like web:17 or val/web:17"
        )
    dataset = open_data(settings)
    known = name in dataset.names
    split, source = name.split("/", 1) if known else (settings.split, name)
    found: dict[str, Any] = {}
    if run is not None:
        explained = _open(run, state)
        if explained.reads(name) or not known:
            found = explained.documents([(name, int(number))], None, 1)
        else:
            found = {"found": 0, "documents": []}
        if decoder(dataset) is None:
            return found
    return {**describe_document(dataset, split, source, int(number)), **found}


def _show(found: dict[str, Any], given: Given, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.look.document import described_lines
    from jaxdata.look.trace import batch_lines, document_lines

    if as_json:
        named = {} if given.config is None else {"config": given.config}
        click.echo(json.dumps(named | found, indent=1))
        return
    console = Console()
    if "parts" in found:
        lines = described_lines(found)
    else:
        lines = (batch_lines if "pieces" in found else document_lines)(found, console.width)
    for line in lines:
        console.print(line, soft_wrap=True)


def _show_row(settings: Config, row: int, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.config import load, open_data
    from jaxdata.look.document import row_lines
    from jaxdata.look.trace import Tracer, decoder

    loader = load(settings)
    if row >= len(loader.rows):
        raise click.UsageError(f"--row {row}: the run has rows 0 to {len(loader.rows) - 1}")
    pieces = Tracer(loader, decoder(open_data(settings))).rows([row])
    arrays = loader.rows[row]
    if as_json:
        found: dict[str, Any] = {"row": row, "pieces": [asdict(piece) for piece in pieces]}
        click.echo(json.dumps(found | {name: array.tolist() for name, array in arrays.items()}))
        return
    console = Console()
    filled = int((arrays["segment_ids"] > 0).sum())
    click.echo(
        f"row {row:,} of {len(loader.rows):,}: {counted(len(pieces), 'segment')}, {filled:,} of "
        f"{len(arrays['segment_ids']):,} slots filled, {int(arrays['loss_mask'].sum()):,} with loss"
    )
    for line in row_lines(arrays, pieces, min(console.width, 100)):
        console.print(line, soft_wrap=True)


def _show_dataset(settings: Config, compare: bool, statistics: bool, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.config import open_data
    from jaxdata.look.dataset_summary import (
        dataset_lines,
        dataset_table,
        describe_dataset,
        statistics_tables,
    )
    from jaxdata.look.strategies import compare_strategies, describe_costs, packing_table

    dataset = open_data(settings)
    found, costs, seq_len = describe_dataset(dataset), [], settings.pack.seq_len
    if compare:
        names = dataset.splits[settings.split]
        sources = [dataset.source(settings.split, name) for name in names]
        costs = compare_strategies(sources, seq_len=seq_len)
        found["packing"] = describe_costs(costs)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    console = Console()
    console.print(dataset_table(found))
    for line in dataset_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    for table in statistics_tables(dataset, found) if statistics else ():
        console.print(table)
    if compare:
        console.print()
        console.print(packing_table(costs, seq_len=seq_len))


def _show_views(settings: Config, as_json: bool) -> None:
    from jaxdata.config import open_data
    from jaxdata.look.dataset_summary import describe_dataset, view_lines
    from jaxdata.look.terminal import printable

    sources = describe_dataset(open_data(settings))["sources"].items()
    found = {name: source["views"] for name, source in sources if source.get("views")}
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for name, views in found.items():
        click.echo(printable(name))
        for view, described in views.items():
            for line in view_lines(view, described):
                click.echo(f"    {line}")
    if not found:
        click.echo("no views; jaxdata dedup makes them")
