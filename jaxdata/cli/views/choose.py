"""`jaxdata select DATASET`: a view of the documents of which an expression holds."""

from __future__ import annotations

import click

from jaxdata.cli.views.shown import say_published

_EPILOG = """\b
Examples:
  jaxdata select data/mine --where "lang == 'en' and score > 0.7" --output-name good
  jaxdata select data/mine --sources web --weight score --output-name weighted
  jaxdata select data/mine --scores scores.parquet --scores-key url --where "quality > 3" \\
      --documents d1 --output-name best
"""


@click.command(epilog=_EPILOG)
@click.argument("dataset")
@click.option("--output-name", "name", required=True, help="Name of the view, like good.")
@click.option("--where", help="Documents to keep: an expression over their fields.")
@click.option(
    "--weight",
    help="Times that each document is listed on average: an expression. 2.3 lists it 2 or 3 times, "
    "the same in every epoch.",
)
@click.option("--sources", help="Sources, separated by commas.  [default: all of the split]")
@click.option("--split", default="train", show_default=True, help="Their split.")
@click.option(
    "--scores",
    help="File with further fields: the columns of a .parquet or .jsonl file, or a .npy file of "
    "numbers, whose field is `score`; in the order of the documents.",
)
@click.option(
    "--scores-key", help="Field by which the rows of --scores are found, instead of their order."
)
@click.option("--documents", help="View to choose from.  [default: all documents]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --weight.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def select(
    dataset: str,
    name: str,
    where: str | None,
    weight: str | None,
    sources: str | None,
    split: str,
    scores: str | None,
    scores_key: str | None,
    documents: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Keep the documents that an expression chooses, as a view: no token is copied.

    Fields are those that the conversion kept (--keep), those of --scores, and built-in ones:
    tokens, document, source, file. Expressions have comparisons, in, is None, and, or, not,
    arithmetic, len(), lower(), startswith() and endswith(). Where a field is missing, a comparison
    with it is unknown, and the document is not kept.

    To train on the view, set `documents: NAME` in the config. jaxdata views shows and removes it.
    """
    from jaxdata.base.progress import progress_bar
    from jaxdata.dataset.views.selecting import select as make

    with progress_bar("choosing documents") as progress:
        made = make(
            dataset,
            name,
            where=where,
            weight=weight,
            sources=None if sources is None else sources.split(","),
            split=split,
            scores=scores,
            scores_key=scores_key,
            documents=documents,
            seed=seed,
            progress=progress,
        )
    say_published(name, made, as_json=as_json)
