"""`jaxdata dedup`."""

from __future__ import annotations

from typing import Any, get_args

import click

from jaxdata.base.hashing import ExactRule, NgramOf
from jaxdata.cli.views.shown import say_published
from jaxdata.dedup.settings import Action, DedupSettings, RuleName

_EPILOG = """\b
Examples:
  jaxdata dedup data/mine --output-name d1
  jaxdata dedup data/mine --show d1
  jaxdata dedup data/mine --sources web,wiki --against val,bench/*.jsonl --output-name d1 \\
      --text-key question,answer

To resume an interrupted search, give the same command again.
"""
_SHOWN = DedupSettings()


class _Names(click.ParamType[Any]):
    """Names separated by commas."""

    name = "A,B"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> list[str]:
        return [name.strip() for name in value.split(",") if name.strip()]


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
@click.option(
    "--sources",
    type=_Names(),
    help="Sources that lose documents, the preferred ones first.  [default: all of --split]",
)
@click.option(
    "--against",
    type=_Names(),
    default="",
    help="Splits or sources of the dataset, and files of benchmarks: what they have is dropped "
    "from --sources, and they stay as they are.",
)
@click.option("--split", default="train", show_default=True, help="Split of --sources.")
@click.option("--documents", metavar="VIEW", help="View that --sources are read through.")
@click.option(
    "--exact",
    type=click.Choice(get_args(ExactRule)),
    help="What exact copies are equal in: everything (none), all but whitespace, or letters and "
    "digits.  [default: whitespace]",
)
@click.option(
    "--near/--no-near", default=_SHOWN.near, show_default=True, help="Drop near copies, too."
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=_SHOWN.threshold,
    show_default=True,
    help="Share of n-grams, of those that either has, that near copies have in common; 0: MinHash "
    "decides alone.",
)
@click.option(
    "--compared-with",
    type=click.Choice(["cluster", "survivor"]),
    default=_SHOWN.compared_with,
    show_default=True,
    help="What a near copy is so similar to: another of its cluster, or the one that stays.",
)
@click.option(
    "--of",
    type=click.Choice(get_args(NgramOf)),
    default=_SHOWN.of,
    show_default=True,
    help="What n-grams are made of; ids are token ids, for which no text is decoded.",
)
@click.option(
    "--ngram", type=click.IntRange(1), default=_SHOWN.ngram, show_default=True, help="Their length."
)
@click.option(
    "--bands",
    type=click.IntRange(1),
    default=_SHOWN.bands,
    show_default=True,
    help="Bands of MinHash.",
)
@click.option(
    "--rows", type=click.IntRange(1), default=_SHOWN.rows, show_default=True, help="Hashes a band."
)
@click.option(
    "--prefer",
    metavar="RULE",
    default=_SHOWN.prefer,
    show_default=True,
    help="Which copy of a source stays: the longest, the first, or that with the smallest value of "
    "a kept field (url; -date for the largest).",
)
@click.option(
    "--overlap",
    type=click.IntRange(0),
    help="Words (or what --of says) in a row of a benchmark file that drop a document; 0: none.  "
    f"[default: {_SHOWN.overlap}]",
)
@click.option(
    "--overlap-most",
    type=click.IntRange(0),
    help="Words in a row that more documents than this have drop none; 0: they always do.  "
    f"[default: {_SHOWN.overlap_most}]",
)
@click.option(
    "--overlap-action",
    type=click.Choice(get_args(Action)),
    help="Drop such documents, train them without loss on these words, or cut these words out of "
    f"them.  [default: {_SHOWN.overlap_action}, or that of --decontaminate]",
)
@click.option(
    "--decontaminate",
    type=click.Choice(get_args(RuleName)),
    help="A published rule in the place of --overlap and --overlap-most, for files of --against.",
)
@click.option(
    "--repeats",
    type=click.IntRange(0),
    default=_SHOWN.repeats,
    show_default=True,
    help="Train spans of so many tokens, or more, without loss where an earlier document, or the "
    "same one, has them before; 0: none.",
)
@click.option(
    "--repeats-action",
    type=click.Choice(["mask", "cut"]),
    default=_SHOWN.repeats_action,
    show_default=True,
    help="Train such spans without loss, or cut them out of their documents.",
)
@click.option(
    "--text-key",
    default="text",
    show_default=True,
    help="Key of the texts in files of --against; several with commas.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per core]")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster.",
)
@click.option("--ray-address", metavar="HOST:PORT", help="The cluster.  [default: $RAY_ADDRESS]")
@click.option(
    "--memory",
    type=_Bytes(),
    default="1G",
    show_default=True,
    help="Memory that a process takes to sort, about.",
)
@click.option("--unit-tokens", type=click.IntRange(1), hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def dedup(
    dataset: str, name: str | None, show: str | None, examples: int, as_json: bool, **options: Any
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
    from jaxdata.dedup import deduplicate

    given = {option: value for option, value in options.items() if value is not None}
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
