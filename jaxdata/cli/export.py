"""`jaxdata export`: the documents of a source as another tool's files."""

from __future__ import annotations

import time

import click

__all__ = ["export"]


@click.command(
    epilog="What was exported is opened as megatron:OUTPUT, gpts:OUTPUT or nanogpt:OUTPUT."
)
@click.argument("dataset")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["megatron", "gpts", "nanogpt"]),
    required=True,
    help="Megatron-Core's or GPT-Simple's .bin and .idx; nanoGPT's one file.",
)
@click.option(
    "--output",
    required=True,
    help="What comes before .bin and .idx; for nanogpt, the file.",
)
@click.option("--source", help="Which source.  [default: the only one]")
@click.option("--split", default="train", show_default=True, help="Of which split.")
@click.option("--eod-id", type=int, help="The token that ends documents.  [default: the dataset's]")
def export(
    dataset: str, format_: str, output: str, source: str | None, split: str, eod_id: int | None
) -> None:
    """Write the documents of a source as the files of Megatron-Core, GPT-Simple or nanoGPT.

    DATASET is a folder or URL, or what another tool wrote, such as megatron:PREFIX. What the
    other format cannot hold is refused, never left out: loss masks, ids above 65,535 and
    documents without EOD in nanoGPT's.

    \b
        jaxdata export data/mine --source web --format megatron --output old/web
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.errors import InputError
    from jaxdata.format.foreign import is_foreign
    from jaxdata.make.export import export as write
    from jaxdata.progress import progress_bar
    from jaxdata.rows.dataset import open_dataset, source_names

    opened = open_dataset(dataset, eod_id=eod_id if is_foreign(dataset) else None)
    names = source_names(opened, split)
    if source is None and len(names) > 1:
        raise InputError(f"split {split!r} of {dataset} has {', '.join(names)}: choose a --source")
    started = time.perf_counter()
    with progress_bar("writing tokens") as progress:
        done = write(
            opened.source(split, source or names[0]),
            output,
            format=format_,
            eod_id=opened.eod_id if eod_id is None else eod_id,
            progress=progress,
        )
    click.echo(
        f"{done.documents:,} documents, {done.tokens:,} tokens, {done.bytes / 1e6:,.1f} MB in "
        f"{' and '.join(done.files)}; took {time.perf_counter() - started:,.1f} s"
    )
