"""`jaxdata inspect`: a dataset, a document and the steps that train it, a batch, or one row."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxdata import look
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand, bare_word, is_config
from jaxdata.cli.options import JSON, command, document_named
from jaxdata.look.terminal import show, width

if TYPE_CHECKING:
    from jaxdata.config import Config
    from jaxdata.dataset.opening import Dataset

_EPILOG = """\b
Examples:
  jaxdata inspect data/mine
  jaxdata inspect data/mine --document web:17
  jaxdata inspect data/mine --row 3 --pack.seq_len 512
  jaxdata inspect pretrain --dataset data/mine --step 48123
  jaxdata trace 'a sentence of it' --config pretrain --state runs/mine
  jaxdata inspect pretrain --deleted --runs runs/mine
"""
_ASKED = ("document", "find", "step")
Shown = tuple[Iterable[Any], dict[str, Any]]
"""lines and tables, and what they say as plain values"""


class _Traced(RunCommand):
    """`inspect`, for which `trace TEXT` may be typed."""

    def given(self, config: str | None, words: tuple[str, ...], asked: dict[str, Any]) -> Given:
        """See `RunCommand`; of `trace`, a bare word that is no data is the text to find."""
        typed = str(click.get_current_context().find_root().obj).split()[1:2]
        if typed == ["trace"] and all(asked[name] is None for name in (*_ASKED, "row")):
            word, rest = bare_word(words)
            if word is not None:
                data = "://" in word or Path(word).exists()
                if data or (config is None and is_config(word)):
                    asked["find"], rest = bare_word(rest)
                    words = (word, *rest)
                else:
                    asked["find"], words = word, rest
        return super().given(config, words, asked)


@command(cls=_Traced, epilog=_EPILOG)
def inspect(
    given: Given,
    document: str | None = setting(
        None, "Show this document decoded; of a CONFIG, its steps too.", metavar="[SPLIT/]SOURCE:ID"
    ),
    find: str | None = setting(
        None,
        "Show the documents that contain this text, or one of a file's; of a CONFIG, also when "
        "each is trained.",
        metavar="TEXT|@FILE",
    ),
    step: int | None = setting(None, "Show the documents of this batch, from 0.", ge=0),
    state: str | None = setting(
        None,
        "Take batch sizes and skipped rows from a loader's state, a checkpoint or a run's folder; "
        "alone, show the next batch.",
        metavar="PATH",
    ),
    row: int | None = setting(
        None, "Draw this row of the run; with --step or --state, of the batch.", ge=0
    ),
    views: bool = setting(False, "Show only the views: what each keeps and drops."),
    deleted: bool = setting(False, "Print as CSV which steps of --runs trained deleted documents."),
    runs: tuple[str, ...] = setting(
        (), "A run's folder or state; repeatable.  [default: train.output]", metavar="DIR"
    ),
    as_json: bool = JSON,
) -> None:
    """Show a dataset, a document, a batch or a row.

    A dataset: sources with documents, tokens and lengths, views, tokenizer, statistics; of a CONFIG
    also what each packing strategy makes of it. A batch: for each segment its document, tokens,
    shard and record, input file and line. A row: a colour or letter for each segment, dots for
    padding, lower case without loss. Any field of a config can be set.
    """
    if sum(value is not None for value in (document, find, step)) > 1:
        raise click.UsageError("--step, --document and --find exclude each other: give one of them")
    from jaxdata.config import open_data

    settings, in_run = given.settings(), given.config is not None
    if deleted:
        rows = [look.trace.Trained._fields, *look.trace.deleted_documents(settings, runs)]
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    if document is not None:
        lines, found = _document(settings, open_data(settings), document, in_run, state)
    elif find is not None:
        asked = look.texts.read_texts(find[1:]) if find[:1] == "@" else look.texts.checked([find])
        run = look.trace.Tracer.of(settings, state) if in_run or state is not None else None
        found = look.texts.describe_texts(open_data(settings), run, asked)
        lines = look.texts.text_lines(found, width())
    elif step is not None or state is not None:
        found = look.trace.Tracer.of(settings, state).described_batch(step, row)
        lines = look.document.batch_lines(found, width())
    elif row is not None:
        lines, found = _row(settings, row)
    else:
        lines, found = _dataset(settings, open_data(settings), in_run, views)
    show(lines, ({"config": given.config} if given.config else {}) | found, as_json=as_json)


def _document(
    settings: Config, dataset: Dataset, document: str, in_run: bool, state: str | None
) -> Shown:
    """A document decoded; where there is a run, also its places there."""
    name, number = document_named(document, f"--document {document}")
    full = name if name in dataset.names else f"{settings.split}/{name}"
    places: dict[str, Any] = {}
    if in_run:
        run = look.trace.Tracer.of(settings, state)
        there = run.named(name) in run.names or full != name
        traced = [run.described(name, number)] if there else []
        places = {"next_row": run.next_row, "documents": traced}
        if look.trace.decoder(dataset) is None:
            return look.document.traced_lines(traced, width()), places
    found = look.document.describe_document(dataset, full, number) | places
    return look.document.document_lines(found), found


def _row(settings: Config, row: int) -> Shown:
    run = look.trace.Tracer.of(settings, None)
    rows = run.loader.rows
    if row >= len(rows):
        raise click.UsageError(f"--row {row}: the run has rows 0 to {len(rows) - 1}")
    pieces, arrays = run.rows([row]), rows[row]
    plain = {name: array.tolist() for name, array in arrays.items()}
    found: dict[str, Any] = {"row": row, "pieces": pieces, **plain}
    said, name = look.document.said_of(pieces), f"row {row:,} of {len(rows):,}"
    return look.document.row_lines(arrays, name, said, min(width(), 100)), found


def _dataset(settings: Config, dataset: Dataset, compare: bool, views: bool) -> Shown:
    seq_len, summary = settings.pack.seq_len, look.dataset_summary
    found = summary.describe_dataset(dataset)
    if views:
        found = summary.views_of(found)
        return summary.views_lines(found), found
    lines = [*summary.dataset_lines(found)]
    if compare:
        names = dataset.splits[settings.split]
        sources = [dataset.source(settings.split, name) for name in names]
        found["packing"] = summary.compare_strategies(sources, seq_len=seq_len)
        lines += ["", summary.packing_table(found["packing"], seq_len=seq_len)]
    return lines, found
