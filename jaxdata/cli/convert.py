"""`jaxdata convert`."""

from __future__ import annotations

from typing import Any

import click

from jaxdata.cli.convert_options import dealing, filtering, guarding, reading, running
from jaxdata.cli.groups import GroupedCommand
from jaxdata.cli.tasks import given, task_options, token
from jaxdata.convert import ConversionReport
from jaxdata.convert import convert as run_conversion
from jaxdata.progress import progress_bar
from jaxdata.tokenizers import SPECS, load

__all__ = ["convert"]

_EPILOG = """\b
Examples:
  jaxdata convert pages.jsonl --output data/mine --source web --tokenizer bytes
  jaxdata convert corpus/ more/*.parquet --output data/mine --source books \\
      --tokenizer sentencepiece:tokenizer.model --text-key content --workers 8

An interrupted conversion goes on where it stopped when the same command is given again.
"""


@click.command(cls=GroupedCommand, epilog=_EPILOG)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", required=True, help="The dataset: a folder or URL. Made if need be.")
@click.option("--source", required=True, help="What to call these documents, such as 'web'.")
@click.option(
    "--tokenizer",
    required=True,
    metavar="SPEC",
    help=f"{SPECS}.",
)
@click.option(
    "--on-error",
    type=click.Choice(["quarantine", "fail"]),
    default="quarantine",
    show_default=True,
    help="Set records without a usable text aside in a file, or stop at the first.",
)
@click.option("--bos", is_flag=True, help="Begin each document with the begin-of-sequence token.")
@click.option("--eod", type=token, metavar="TOKEN", help="End-of-document token: text or id.")
@click.option("--bos-token", type=token, metavar="TOKEN", help="Begin-of-sequence token, likewise.")
@click.option("--pad-token", type=token, metavar="TOKEN", help="Padding token, likewise.")
@click.option(
    "--record-tokens",
    type=click.IntRange(1),
    default=16_384,
    show_default=True,
    help="Longer documents are stored in several records.",
)
@click.option("--unit-bytes", type=click.IntRange(1), hidden=True)
@click.option("--piece-bytes", type=click.IntRange(16), hidden=True)
@reading
@task_options
@filtering
@dealing
@guarding
@running
def convert(
    inputs: tuple[str, ...],
    output: str,
    tokenizer: str,
    eod: str | int | None,
    bos_token: str | int | None,
    pad_token: str | int | None,
    unit_bytes: int | None,
    piece_bytes: int | None,
    stats_seq_len: int | None,
    **options: Any,
) -> None:
    """Make a source of a dataset from raw text.

    INPUT is files, folders (searched to the bottom) or globs of .jsonl, .json, .txt, .parquet and
    .arrow, compressed (.gz, .zst) or in archives (.tar). A line of JSON, an element of an array or
    a row of a table is a document, and so is a whole text file; of more than 64 MiB, in pieces. Run
    it again with another --source to add to the dataset.
    """
    if not inputs and not options["files_from"]:
        raise click.UsageError("give files, folders or globs to convert, or --files-from")
    _read_texts(options)
    sizes = {"unit_bytes": unit_bytes, "piece_bytes": piece_bytes}
    options |= {name: size for name, size in sizes.items() if size}
    loaded = load(tokenizer, eod=eod, bos=bos_token, pad=pad_token)
    try:
        with progress_bar("converting", in_bytes=True) as progress:
            report = run_conversion(
                list(inputs), output=output, tokenizer=loaded, progress=progress, **given(options)
            )
    except KeyboardInterrupt:
        raise click.Abort("What is done is kept: the same command goes on from there") from None
    click.echo(report)
    _print_statistics(report, stats_seq_len)
    click.echo(_next_command(report))


def _print_statistics(report: ConversionReport, seq_len: int | None) -> None:
    """Print what was counted and, if asked, the rows and padding of each way to pack it."""
    from rich.console import Console

    from jaxdata.format.manifest import read_manifest
    from jaxdata.format.storage import open_store
    from jaxdata.look.statistics import statistics_table

    console, manifest = Console(), read_manifest(open_store(report.output))
    console.print(statistics_table(manifest, report.sources))
    if seq_len:
        from jaxdata.look.packing import compare_strategies, packing_table
        from jaxdata.rows.dataset import open_dataset

        dataset = open_dataset(report.output)
        sources = [dataset.source(*name.split("/", 1)) for name in report.sources]
        console.print(packing_table(compare_strategies(sources, seq_len=seq_len), seq_len=seq_len))


def _read_texts(options: dict[str, Any]) -> None:
    """Turn options as they are typed into arguments."""
    options["normalize"] = options["normalize"] and options["normalize"].upper()
    options["keep"] = [key.strip() for key in (options["keep"] or "").split(",") if key.strip()]
    joiner = options.pop("text_joiner")
    if joiner is not None:
        options["text_joiner"] = joiner.replace(r"\n", "\n").replace(r"\t", "\t")


def _next_command(report: ConversionReport) -> str:
    split, source = report.sources[0].split("/", 1)
    return (
        "read its first document: "
        f"python -c \"import jaxdata; d = jaxdata.open_dataset('{report.output}'); "
        f"print(d.decode(d.source('{split}', '{source}')[0]['tokens']))\""
    )
