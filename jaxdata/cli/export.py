"""`jaxdata export`: export the documents of a source as another tool's dataset."""

from __future__ import annotations

import time

import click

from jaxdata.base.wording import counted
from jaxdata.dataset.foreign import writers


@click.command(
    epilog="jaxdata opens the exported files as FORMAT:OUTPUT, for example megatron:OUTPUT."
)
@click.argument("dataset")
@click.option(
    "--format",
    "format_",
    type=click.Choice([*writers()]),
    required=True,
    help="megatron (Megatron-Core) and gpts (GPT-Simple): .bin and .idx; nanogpt: one file.",
)
@click.option(
    "--output", required=True, help="Path or URL without .bin and .idx; for nanogpt, the file."
)
@click.option("--source", help="Source to export.  [default: the only one]")
@click.option("--split", default="train", show_default=True, help="Split of that source.")
@click.option("--documents", help="View of it whose documents are exported.  [default: all]")
@click.option("--eod-id", type=int, help="Token that ends documents.  [default: the dataset's]")
def export(
    dataset: str,
    format_: str,
    output: str,
    source: str | None,
    split: str,
    documents: str | None,
    eod_id: int | None,
) -> None:
    """Export the documents of a source as a dataset of another tool.

    DATASET is a folder or URL, or another tool's dataset, such as megatron:PREFIX. Anything that
    the format cannot store is an error, never dropped: loss masks; in nanoGPT's, ids above 65,535
    and documents without EOD.

    \b
        jaxdata export data/mine --source web --format megatron --output old/web
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.dataset.contract import source_names
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.foreign.export import export as write

    opened = open_dataset(dataset, eod_id=eod_id if is_foreign(dataset) else None)
    names = source_names(opened, split)
    if source is None and len(names) > 1:
        raise InputError(f"split {split!r} of {dataset} has {', '.join(names)}: choose a --source")
    started = time.perf_counter()
    with progress_bar("writing tokens") as progress:
        done = write(
            opened.source(split, source or names[0], documents=documents),
            output,
            format=format_,
            eod_id=opened.eod_id if eod_id is None else eod_id,
            progress=progress,
        )
    click.echo(
        f"{counted(done.documents, 'document')}, {counted(done.tokens, 'token')}, "
        f"{done.bytes / 1e6:,.1f} MB in "
        f"{' and '.join(done.files)}; took {time.perf_counter() - started:,.1f} s"
    )
