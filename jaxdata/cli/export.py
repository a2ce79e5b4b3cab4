"""`jaxdata export`: the packed rows of a run, or the documents of a source, for other tools."""

from __future__ import annotations

import time
from typing import Any

import click

from jaxdata.base.errors import InputError
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.base.wording import counted
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import command, refuse
from jaxdata.dataset.contract import source_names
from jaxdata.dataset.foreign import writers
from jaxdata.foreign.record_formats import RECORD_FORMATS

_ROWS = {"rows" if name == "plain" else name: name for name in RECORD_FORMATS}
"""formats of rows, as they are typed -> as Python has them"""


def _range(value: str) -> tuple[int, int | None]:
    """Return what is typed as `A:B`; both ends are optional."""
    first, colon, stop = value.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (first, stop)):
        raise click.BadParameter(f"{value!r}: expected rows like 0:1000, :1000 or 1000:")
    return int(first or 0), int(stop) if stop else None


_OF_ROWS = ("shuffle", "rows", "shard_rows")
_EPILOG = """\b
To finish an interrupted export of rows, run the same command. jaxdata opens
exported documents as FORMAT:OUTPUT, for example megatron:OUTPUT.
  jaxdata export pretrain --dataset data/mine --output rows/
  jaxdata export mine.yaml --output to/ --loader.layout maxtext
  jaxdata export data/mine --source web --format megatron --output old/web
"""


@command(cls=RunCommand, epilog=_EPILOG)
def export(
    given: Given,
    output: str = setting(..., "Folder or URL; of documents, the file to write."),
    format: str = setting(
        "rows",
        "rows: the arrays' bytes; tf_example: a tf.train.Example of int64 lists. Documents: "
        "megatron (Megatron-Core) and gpts (GPT-Simple) write .bin and .idx, nanogpt one file.",
        type=click.Choice([*_ROWS, *writers()]),
    ),
    split: str | None = setting(
        None, "Documents: their split; rows: each of its sources once.  [default: train]"
    ),
    shuffle: bool | None = setting(
        None, "Rows: in the order of training, or every source once in dataset order."
    ),
    rows: Any = setting(None, "Rows: which of them.  [default: all]", type=_range, metavar="A:B"),
    shard_rows: int | None = setting(None, "Rows: how many a file.", ge=1),
    source: str | None = setting(None, "Documents: their source.  [default: the only one]"),
    eod_id: int | None = setting(None, "Documents: the token that ends them."),
) -> None:
    """Export the packed rows of a run, or the documents of a source.

    Rows are ArrayRecord files, one row a record, for programs that only read records in order, such
    as MaxText; OUTPUT/rows.json, written last, describes them. Of documents, what a format cannot
    store is an error, never dropped: loss masks; in nanoGPT's, ids above 65,535 and documents
    without EOD. Any field of a config can be set: --documents NAME exports a view.
    """
    from jaxdata.config import build_rows
    from jaxdata.foreign.materialize import materialize

    if format not in _ROWS:
        refuse(_OF_ROWS, f"{{}} is for rows, not for --format {format}")
        _export_documents(given, output, format, split, source, eod_id)
        return
    refuse(("source", "eod_id"), f"{{}} is for documents, not for --format {format}")
    settings, started, in_order = given.settings(), time.perf_counter(), shuffle is False
    training, (first, stop) = not in_order and split in (None, settings.split), rows or (0, None)
    try:
        with progress_bar("writing rows") as progress:
            done = materialize(
                build_rows(settings, split, shuffle=not in_order),
                output,
                layout=settings.loader.layout,
                record_format=_ROWS[format],
                first_row=first,
                stop_row=stop,
                skip_rows=settings.loader.skip_rows if training else (),
                shard_rows=shard_rows,
                extras=settings.loader.extras,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise click.Abort("Finished files are kept: run the same command to continue") from None
    size = sum(shard.bytes for shard in done.shards) / 1e6
    click.echo(
        f"{counted(done.rows, 'row')}, {done.trained_tokens:,} trained tokens, "
        f"{counted(len(done.shards), 'file')}, {size:,.1f} MB in {output}; "
        f"took {time.perf_counter() - started:,.1f} s"
    )


def _export_documents(
    given: Given,
    output: str,
    format: str,
    split: str | None,
    source: str | None,
    eod_id: int | None,
) -> None:
    from jaxdata.config import open_data
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.foreign.export import export as write

    settings, started = given.settings(), time.perf_counter()
    split = split or settings.split
    # Another tool's data may not say which token ends documents.
    named = given.dataset or ""
    opened = open_dataset(named, eod_id=eod_id) if is_foreign(named) else open_data(settings)
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
            format=format,
            eod_id=opened.eod_id if eod_id is None else eod_id,
            progress=progress,
        )
    click.echo(
        f"{counted(done.documents, 'document')}, {counted(done.tokens, 'token')}, "
        f"{done.bytes / 1e6:,.1f} MB in {' and '.join(done.files)}; "
        f"took {time.perf_counter() - started:,.1f} s"
    )
