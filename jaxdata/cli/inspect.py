"""`jaxdata inspect`: a dataset, a document and the steps that train it, a batch, or one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxdata.cli.config import OVERRIDABLE, Given, RunCommand, bare_word, is_config, takes_data

if TYPE_CHECKING:
    from jaxdata.config import Config
    from jaxdata.look.trace import Explanation

_EPILOG = """\b
Examples:
  jaxdata inspect data/mine
  jaxdata inspect data/mine --document web:17
  jaxdata inspect data/mine --row 3 --pack.seq_len 512
  jaxdata inspect pretrain --dataset data/mine --step 48123
  jaxdata trace 'a sentence of it' --config pretrain --state runs/mine
  jaxdata inspect data/mine --find-file texts.jsonl --json
  jaxdata inspect pretrain --deleted --runs runs/mine
"""


class _Traced(RunCommand):
    """`inspect`, for which `trace TEXT` may be typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; of `trace`, a bare word that is no data is the text to find."""
        rest = super().parse_args(ctx, args)
        given = ctx.params
        asked = [given[name] for name in ("document", "find", "find_file", "step", "row")]
        if given.pop("trace") and asked == [None] * len(asked):
            given |= _text_among(given["overrides"], given["config"])
        return rest


def _text_among(words: tuple[str, ...], config: str | None) -> dict[str, Any]:
    """What to find, and the other words; nothing where no word is a text."""
    word, rest = bare_word(words)
    if word is None:
        return {}
    is_data = "://" in word or Path(word).exists() or (config is None and is_config(word))
    if not is_data:
        return {"find": word, "overrides": rest}
    text, rest = bare_word(rest)
    return {} if text is None else {"find": text, "overrides": (word, *rest)}


@click.command(**OVERRIDABLE | {"cls": _Traced}, epilog=_EPILOG)
@takes_data
@click.option(
    "--document",
    metavar="[SPLIT/]SOURCE:ID",
    help="Show this document decoded; of a CONFIG, also the steps that train it.",
)
@click.option(
    "--find",
    metavar="TEXT",
    help="Show the documents that contain this text; of a CONFIG, also when each is trained.",
)
@click.option(
    "--find-file",
    metavar="FILE",
    help="The same for each text of a file, one a line.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Most documents that are shown.  [default: 10, with --json all]",
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
@click.option(
    "--deleted",
    is_flag=True,
    help="Print, as CSV, the steps of --runs that trained documents which were deleted since.",
)
@click.option(
    "--runs",
    multiple=True,
    metavar="DIR",
    help="A run's folder, checkpoint or state; may be repeated.  [default: train.output]",
)
@click.option("--statistics", is_flag=True, help="Also show all statistics of the conversion.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--trace", is_flag=True, hidden=True)
def inspect(
    given: Given,
    document: str | None,
    find: str | None,
    find_file: str | None,
    limit: int | None,
    step: int | None,
    state: str | None,
    row: int | None,
    views: bool,
    deleted: bool,
    runs: tuple[str, ...],
    statistics: bool,
    as_json: bool,
) -> None:
    """Show a dataset, a document, a batch or a row.

    A dataset: sources with documents, tokens and lengths, views, tokenizer, statistics; of a CONFIG
    also what each packing strategy makes of it. A batch: for each segment its document, tokens,
    shard and record, input file and line. A row: a colour or letter for each segment, dots for
    padding, lower case without loss. Any field of a config can be set.
    """
    if sum(value is not None for value in (document, find, find_file, step)) > 1:
        raise click.UsageError(
            "--step, --document, --find and --find-file exclude each other: give one of them"
        )
    from jaxdata.look.terminal import show

    settings = given.settings()
    if deleted:
        _deleted(settings, runs)
        return
    if document is not None:
        lines, found = _document(settings, document, given.config is not None, state)
    elif find is not None or find_file is not None:
        in_run = given.config is not None or state is not None
        lines, found = _texts(settings, find, find_file, limit, in_run, state)
    elif step is not None or state is not None:
        lines, found = _batch(settings, step, state, row)
    elif row is not None:
        lines, found = _row(settings, row)
    elif views:
        lines, found = _views(settings)
    else:
        lines, found = _dataset(settings, given.config is not None, statistics)
    named = {} if given.config is None else {"config": given.config}
    show(lines, named | found, as_json=as_json)


def _deleted(settings: Config, runs: tuple[str, ...]) -> None:
    """Print the account of deleted documents: those that runs trained, then those that none did."""
    from jaxdata.config import load, load_config, open_data
    from jaxdata.look.deleted import Trained, deleted_documents, generations_of, trained_rows
    from jaxdata.look.states import read_state

    own = settings.train.output
    dataset, trained = open_data(settings), set[tuple[str, int]]()
    click.echo(",".join(Trained._fields))
    for run in runs or ([own] if Path(own).is_dir() else []):
        state = read_state(run)
        generations = generations_of(dataset, settings.split, state, run)
        loader = load(load_config(settings, {"generations": generations}))
        loader.set_state(state)
        for row in trained_rows(loader, run):
            trained.add((row.source, row.document))
            click.echo(str(row))
    for document in deleted_documents(dataset, settings.split):
        if (document.source, document.document) not in trained:
            click.echo(str(document))


Shown = tuple[Iterable[Any], dict[str, Any]]
"""lines and tables, and what they say as plain values"""


def _open(settings: Config, state: str | None) -> Explanation:
    from jaxdata.config import load, open_data
    from jaxdata.look.states import read_state
    from jaxdata.look.trace import Explanation

    loader = load(settings)
    if state is not None:
        loader.set_state(read_state(state))
    return Explanation(loader, open_data(settings), resumed=state is not None)


def _document(settings: Config, document: str, in_run: bool, state: str | None) -> Shown:
    """A document decoded; where there is a run, also its places there."""
    from jaxdata.config import open_data
    from jaxdata.look.document import describe_document, described_lines
    from jaxdata.look.terminal import width
    from jaxdata.look.trace import decoder, document_lines

    name, colon, number = document.rpartition(":")
    if not (colon and name and number.isdecimal()):
        raise click.UsageError(
            f"--document {document}: expected [SPLIT/]SOURCE:ID, like web:17 or val/web:17"
        )
    dataset = open_data(settings)
    known = name in dataset.names
    split, source = name.split("/", 1) if known else (settings.split, name)
    places: dict[str, Any] = {}
    if in_run:
        run = _open(settings, state)
        there = run.reads(name) or not known
        chosen = [(name, int(number))] if there else []
        places = run.documents(chosen)
        if decoder(dataset) is None:
            return document_lines(places["documents"], width()), places
    found = {**describe_document(dataset, split, source, int(number)), **places}
    return described_lines(found), found


def _texts(
    settings: Config,
    text: str | None,
    file: str | None,
    limit: int | None,
    in_run: bool,
    state: str | None,
) -> Shown:
    """Documents that hold a text, or one of a file's; where there is a run, also when."""
    from jaxdata.config import open_data
    from jaxdata.look.found_texts import describe_texts, text_lines
    from jaxdata.look.passages import checked, read_texts
    from jaxdata.look.terminal import width

    texts = read_texts(file) if file is not None else checked([text or ""])
    run = _open(settings, state) if in_run else None
    found = describe_texts(open_data(settings), run, texts, limit)
    return text_lines(found, width(), limit), found


def _batch(settings: Config, step: int | None, state: str | None, row: int | None) -> Shown:
    from jaxdata.look.terminal import width
    from jaxdata.look.trace import batch_lines

    found = _open(settings, state).batch(step, row)
    return batch_lines(found, width()), found


def _row(settings: Config, row: int) -> Shown:
    from jaxdata.config import load, open_data
    from jaxdata.look.document import row_lines, row_title, said_of
    from jaxdata.look.terminal import width
    from jaxdata.look.trace import Tracer, decoder

    loader = load(settings)
    if row >= len(loader.rows):
        raise click.UsageError(f"--row {row}: the run has rows 0 to {len(loader.rows) - 1}")
    pieces = Tracer(loader, decoder(open_data(settings))).rows([row])
    arrays = loader.rows[row]
    found = {"row": row, "pieces": [asdict(piece) for piece in pieces]}
    plain = {name: array.tolist() for name, array in arrays.items()}
    drawn = row_lines(arrays, said_of(pieces), min(width(), 100))
    return [row_title(arrays, row, len(loader.rows)), *drawn], found | plain


def _dataset(settings: Config, compare: bool, statistics: bool) -> Shown:
    from jaxdata.config import open_data
    from jaxdata.look.dataset_summary import (
        dataset_lines,
        dataset_table,
        describe_dataset,
        statistics_tables,
    )
    from jaxdata.look.strategies import compare_strategies, describe_costs, packing_table

    dataset, seq_len = open_data(settings), settings.pack.seq_len
    found = describe_dataset(dataset)
    lines = [dataset_table(found), *dataset_lines(found)]
    lines += statistics_tables(dataset, found) if statistics else ()
    if compare:
        names = dataset.splits[settings.split]
        sources = [dataset.source(settings.split, name) for name in names]
        costs = compare_strategies(sources, seq_len=seq_len)
        found["packing"] = describe_costs(costs)
        lines += ["", packing_table(costs, seq_len=seq_len)]
    return lines, found


def _views(settings: Config) -> Shown:
    from jaxdata.config import open_data
    from jaxdata.look.dataset_summary import describe_dataset, view_lines
    from jaxdata.look.terminal import printable

    sources = describe_dataset(open_data(settings))["sources"].items()
    found = {name: source["views"] for name, source in sources if source.get("views")}
    lines = []
    for name, views in found.items():
        lines.append(printable(name))
        lines += [f"    {line}" for view in views.items() for line in view_lines(*view)]
    return lines or ["no views; jaxdata dedup makes them"], found
