"""`jaxdata export`: the packed rows of a run, or the documents of a source, for other tools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.wording import counted
from jaxdata.cli.config import OVERRIDABLE, Given, takes_data
from jaxdata.dataset.foreign import writers
from jaxdata.feed.layouts import LAYOUTS
from jaxdata.foreign.record_formats import RECORD_FORMATS

if TYPE_CHECKING:
    from jaxdata.dataset.contract import Dataset

_ROWS = {"rows" if name == "plain" else name: name for name in RECORD_FORMATS}
"""formats of rows, as they are typed -> as Python has them"""


class _Format(click.Choice[str]):
    """A format; that of rows may have Python's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("rows" if value == "plain" else value, param, ctx)


class _Range(click.ParamType[Any]):
    """`A:B`; both ends are optional."""

    name = "A:B"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        first, colon, stop = value.partition(":")
        if not colon or not all(part == "" or part.isdecimal() for part in (first, stop)):
            self.fail(f"{value!r}: expected rows like 0:1000, :1000 or 1000:", param, ctx)
        return int(first or 0), int(stop) if stop else None


_EPILOG = """\b
To finish an interrupted export of rows, run the same command. jaxdata opens
exported documents as FORMAT:OUTPUT, for example megatron:OUTPUT.
  jaxdata export pretrain --dataset data/mine --output rows/
  jaxdata export mine.yaml --output to/ --format tf_example --layout maxtext
  jaxdata export data/mine --source web --format megatron --output old/web
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_data
@click.option("--output", required=True, help="Folder or URL; of documents, the file to write.")
@click.option(
    "--format",
    "format_",
    type=_Format([*_ROWS, *writers()]),
    default="rows",
    show_default=True,
    help="rows: the arrays' bytes; tf_example: a tf.train.Example of int64 lists. Documents: "
    "megatron (Megatron-Core) and gpts (GPT-Simple) write .bin and .idx, nanogpt one file.",
)
@click.option(
    "--split", help="Documents: their split; rows: each of its sources once.  [default: train]"
)
@click.option(
    "--layout",
    metavar="NAME",
    help=f"Rows: names, dtypes and masks for a trainer: {', '.join(LAYOUTS)}.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=None,
    help="Rows: in the order of training, or every source once in dataset order.",
)
@click.option("--rows", type=_Range(), help="Rows: which of them.  [default: all]")
@click.option("--shard-rows", type=click.IntRange(1), help="Rows: how many a file.")
@click.option("--workers", type=click.IntRange(1), help="Rows: processes.  [default: one per core]")
@click.option("--source", help="Documents: their source.  [default: the only one]")
@click.option("--eod-id", type=int, help="Documents: the token that ends them.")
def export(given: Given, output: str, format_: str, split: str | None, **more: Any) -> None:
    """Export the packed rows of a run, or the documents of a source.

    Rows are ArrayRecord files, one row a record, for programs that only read records in order, such
    as MaxText; OUTPUT/rows.json, written last, describes them. Of documents, what a format cannot
    store is an error, never dropped: loss masks; in nanoGPT's, ids above 65,535 and documents
    without EOD. Any field of a config can be set: --documents NAME exports a view.
    """
    asked = {name: value for name, value in more.items() if value is not None}
    of_rows = format_ in _ROWS
    for name in asked:
        if of_rows == (name in ("source", "eod_id")):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for {'documents' if of_rows else 'rows'}, "
                f"not for --format {format_}"
            )
    (_export_rows if of_rows else _export_documents)(given, output, format_, split, **asked)


def _export_rows(
    given: Given,
    output: str,
    format_: str,
    split: str | None,
    *,
    shuffle: bool = True,
    rows: tuple[int, int | None] = (0, None),
    layout: str | None = None,
    **files: int,
) -> None:
    from jaxdata.base.progress import progress_bar
    from jaxdata.config import build_rows
    from jaxdata.foreign.materialize import materialize

    settings, started = given.settings(), time.perf_counter()
    training = shuffle and split in (None, settings.split)
    try:
        with progress_bar("writing rows") as progress:
            done = materialize(
                build_rows(settings, split, shuffle=shuffle),
                output,
                layout=layout or settings.loader.layout,
                record_format=_ROWS[format_],
                first_row=rows[0],
                stop_row=rows[1],
                skip_rows=[(a, b) for a, b in settings.loader.skip_rows] if training else (),
                extras=settings.loader.extras,
                progress=progress,
                **files,
            )
    except KeyboardInterrupt:
        raise click.Abort("Finished files are kept: run the same command to continue") from None
    size = sum(shard.bytes for shard in done.shards)
    click.echo(
        f"{counted(done.rows, 'row')}, {done.trained_tokens:,} trained tokens, "
        f"{counted(len(done.shards), 'file')}, {size / 1e6:,.1f} MB in {output}; took "
        f"{time.perf_counter() - started:,.1f} s"
    )


def _export_documents(
    given: Given,
    output: str,
    format_: str,
    split: str | None,
    *,
    source: str | None = None,
    eod_id: int | None = None,
) -> None:
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.dataset.contract import source_names
    from jaxdata.foreign.export import export as write

    settings, started = given.settings(), time.perf_counter()
    opened, split = _opened(given, eod_id), split or settings.split
    names = source_names(opened, split)
    if source is None and len(names) > 1:
        raise InputError(
            f"split {split!r} of {opened.url} has {', '.join(names)}: choose a --source"
        )
    source, view = source or names[0], settings.documents
    with progress_bar("writing tokens") as progress:
        done = write(
            opened.source(
                split, source, documents=view.get(source) if isinstance(view, dict) else view
            ),
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


def _opened(given: Given, eod_id: int | None) -> Dataset:
    """The dataset; another tool's, which may not say so, with the token that ends documents."""
    from jaxdata.config import open_data
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.opening import open_dataset

    if given.dataset is not None and is_foreign(given.dataset):
        return open_dataset(given.dataset, eod_id=eod_id)
    return open_data(given.settings())
