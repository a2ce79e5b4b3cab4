"""`jaxdata inspect PATH`: a dataset, one of its documents, or one row of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from jaxdata.cli.config import OVERRIDABLE

_EPILOG = """\b
Examples:
  jaxdata inspect data/mine
  jaxdata inspect data/mine --document train/web:17
  jaxdata inspect data/mine --row 3 --pack.seq_len 512
  jaxdata inspect --config pretrain
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@click.argument("path", required=False)
@click.option(
    "--config",
    help="Config (YAML file, or name of a shipped one): also compare packing strategies.",
)
@click.option("--document", metavar="SPLIT/SOURCE:ID", help="Show this document, decoded.")
@click.option("--row", type=click.IntRange(0), help="Draw this row of the run, or of PATH packed.")
@click.option("--statistics", is_flag=True, help="Also show all statistics of the conversion.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--FIELD VALUE]...")
def inspect(
    path: str | None,
    config: str | None,
    document: str | None,
    row: int | None,
    statistics: bool,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Show a dataset (PATH is a folder or URL), one of its documents, or one packed row.

    A dataset: sources with documents, tokens and lengths, the tokenizer, and the conversion's
    statistics; with --config also the result of each packing strategy. A document is decoded. A row
    is drawn: one colour or letter per segment, padding, and slots without loss. Any field of the
    config can be set.
    """
    if path is not None and path.startswith("--"):  # an override, where no path was given
        overrides, path = (path, *overrides), None
    if path is None and config is None:
        raise click.UsageError("give PATH or --config")
    from jaxdata.config import load_config, parse_overrides

    named = {} if path is None else {"dataset": path}
    settings = load_config(config or {}, parse_overrides(overrides) | named)
    if document is not None:
        _show_document(settings, document, as_json)
    elif row is not None:
        _show_row(settings, row, as_json)
    else:
        _show_dataset(settings, config is not None, statistics, as_json)


def _show_document(settings: Any, document: str, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.base.wording import counted
    from jaxdata.config import open_data
    from jaxdata.dataset.views.source_view import fate_lines
    from jaxdata.look.document import describe_document, document_text
    from jaxdata.look.terminal import printable
    from jaxdata.look.trace import came_from

    name, colon, number = document.rpartition(":")
    split, slash, source = name.partition("/")
    if not (colon and slash and number.isdecimal()):
        raise click.UsageError(
            f"--document {document}: expected SPLIT/SOURCE:ID, like train/web:17"
        )
    found = describe_document(open_data(settings), split, source, int(number))
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    console = Console()
    loss = f", {found['tokens_with_loss']:,} with loss" if found["masked"] else ""
    came = came_from(found["origin"])
    click.echo(f"{document}: {counted(found['length'], 'token')}{loss}{came and ', from '}{came}")
    for line in fate_lines(found["view"]) if "view" in found else ():
        click.echo(printable(line))
    console.print(document_text(found), soft_wrap=True)


def _show_row(settings: Any, row: int, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.config import load, open_data
    from jaxdata.look.document import row_lines, row_title, said_of
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
    click.echo(row_title(arrays, row, len(loader.rows)))
    for line in row_lines(arrays, said_of(pieces), min(console.width, 100)):
        console.print(line, soft_wrap=True)


def _show_dataset(settings: Any, compare: bool, statistics: bool, as_json: bool) -> None:
    from rich.console import Console

    from jaxdata.config import open_data
    from jaxdata.look.dataset_summary import dataset_lines, dataset_table, describe_dataset
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
    if statistics:
        _print_statistics(dataset, found, console)
    if compare:
        console.print()
        console.print(packing_table(costs, seq_len=seq_len))


def _print_statistics(dataset: Any, found: dict[str, Any], console: Any) -> None:
    """The conversion's statistics, three sources side by side."""
    from jaxdata.look.dataset_summary import statistics_table

    sources = found["sources"].items()
    counted = [name for name, source in sources if "files" in source.get("statistics", {})]
    for first in range(0, len(counted), 3):
        console.print(statistics_table(dataset.manifest, counted[first : first + 3]))
