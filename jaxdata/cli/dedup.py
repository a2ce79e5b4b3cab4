"""`jaxdata dedup`."""

from __future__ import annotations

from typing import Any

import click

from jaxdata.cli.options import Names, options, options_of
from jaxdata.cli.views import say_published
from jaxdata.dedup import deduplicate
from jaxdata.dedup.settings import DedupSettings

_EPILOG = """\b
Examples:
  jaxdata dedup data/mine --output-name d1
  jaxdata dedup data/mine --show d1
  jaxdata dedup data/mine --sources web,wiki --against val,bench/*.jsonl --output-name d1 \\
      --text-key question,answer

To resume an interrupted search, give the same command again.
"""


class _Bytes(click.ParamType[Any]):
    """Bytes as `500M` or `2GiB`; the units are powers of 1,024."""

    name = "BYTES"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = value.upper().removesuffix("B").removesuffix("I")
        unit = "KMGT".find(number[-1:]) + 1 if number[-1:] else 0
        try:
            return int(float(number[:-1] if unit else number) * 1024**unit)
        except (ValueError, OverflowError):
            self.fail(f"{value!r}: expected a size like 500M or 2G", param, ctx)


@click.command(epilog=_EPILOG)
@click.argument("dataset")
@click.option("--output-name", "name", metavar="NAME", help="What the view is called, like d1.")
@click.option(
    "--show",
    metavar="VIEW",
    help="Show examples of what a view drops, masks and cuts; search nothing.",
)
@click.option(
    "--examples",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Of each source and reason, with --show.",
)
@options_of(
    deduplicate,
    sources={
        "help": "Sources that lose documents, the preferred ones first.  [default: all of --split]",
        "type": Names(),
    },
    against={
        "help": "Splits or sources of the dataset, and files of benchmarks: what they have is "
        "dropped from --sources, and they stay as they are.",
        "type": Names(),
        "default": "",
    },
    split="Split of --sources.",
    documents={"help": "View that --sources are read through.", "metavar": "VIEW"},
)
@options(DedupSettings)
@options_of(
    deduplicate,
    text_key="Key of the texts in files of --against; several with commas.",
    workers=("Processes.  [default: one per core]", 1),
    engine="Processes of this machine, or a Ray cluster.",
    ray_address={"help": "The cluster.  [default: $RAY_ADDRESS]", "metavar": "HOST:PORT"},
    memory={
        "help": "Memory that a process takes to sort, about.",
        "type": _Bytes(),
        "default": "1G",
    },
    unit_tokens={"type": click.IntRange(1), "hidden": True},
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def dedup(
    dataset: str, name: str | None, show: str | None, examples: int, as_json: bool, **given: Any
) -> None:
    """Find duplicates, and make a view of the dataset without them.

    DATASET is a folder or URL. Exact and near copies are found within and across --sources, and in
    the splits and files of --against. Of each cluster one document stays. Nothing is rewritten:
    the view is a list of the documents that are kept, and says of each other one why not;
    --show puts some of these beside what stays. Documents that jaxdata convert --minhash hashed
    are not hashed again, where the settings are the same.
    """
    if (name is None) == (show is None):
        raise click.UsageError("give --output-name NAME to search, or --show VIEW to look")
    if show is not None:
        _show(dataset, show, examples)
        return
    from jaxdata.base.progress import progress_bar

    given = {option: value for option, value in given.items() if value is not None}
    try:
        report = deduplicate(dataset, str(name), stage=progress_bar, **given)
    except KeyboardInterrupt:
        raise click.Abort("Finished work is kept: the same command resumes") from None
    if not as_json:
        click.echo(report.summary())
    say_published(report.name, report.views, as_json=as_json)


def _show(dataset: str, view: str, most: int) -> None:
    """Print copies beside what stays."""
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.dedup.examples import examples
    from jaxdata.look.terminal import printable

    for example in examples(open_dataset(dataset), view, most):
        for line in example.lines():
            click.echo(printable(line))
