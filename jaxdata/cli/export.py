"""`jaxdata export`: the packed rows of a run, or the documents of a source, for other tools."""

import time
from typing import Any

import click

from jaxdata.base.errors import InputError, counted
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import command, refuse, resumable
from jaxdata.dataset.foreign import is_foreign, writers
from jaxdata.dataset.opening import source_names
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
    started = time.perf_counter()
    if format in _ROWS:
        refuse(("source", "eod_id"), f"{{}} is for documents, not for --format {format}")
        done = _rows_of(given, output, format, split, shuffle, rows or (0, None), shard_rows)
    else:
        refuse(_OF_ROWS, f"{{}} is for rows, not for --format {format}")
        done = _documents_of(given, output, format, split, source, eod_id)
    click.echo(f"{done}; took {time.perf_counter() - started:,.1f} s")


def _rows_of(
    given: Given,
    output: str,
    format: str,
    split: str | None,
    shuffle: bool | None,
    rows: tuple[int, int | None],
    shard_rows: int | None,
) -> str:
    """Write packed rows; returns what was written, in words."""
    from jaxdata.config import build_rows
    from jaxdata.foreign.materialize import materialize

    settings, in_order = given.settings(), shuffle is False
    training = not in_order and split in (None, settings.split)
    with resumable("files"), progress_bar("writing rows") as progress:
        done = materialize(
            build_rows(settings, split, shuffle=not in_order),
            output,
            layout=settings.loader.layout,
            record_format=_ROWS[format],
            first_row=rows[0],
            stop_row=rows[1],
            skip_rows=settings.loader.skip_rows if training else (),
            shard_rows=shard_rows,
            extras=settings.loader.extras,
            progress=progress,
        )
    size = sum(shard.bytes for shard in done.shards) / 1e6
    return (
        f"{counted(done.rows, 'row')}, {done.trained_tokens:,} trained tokens, "
        f"{counted(len(done.shards), 'file')}, {size:,.1f} MB in {output}"
    )


def _documents_of(
    given: Given, to: str, format: str, split: str | None, source: str | None, eod_id: int | None
) -> str:
    """Write the documents of a source; returns what was written, in words."""
    from jaxdata.config import open_data
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.foreign.export import export as write

    settings, named = given.settings(), given.dataset or ""
    # Another tool's data may not say which token ends documents.
    opened = open_dataset(named, eod_id=eod_id) if is_foreign(named) else open_data(settings)
    names = source_names(opened, split := split or settings.split)
    if source is None and len(names) > 1:
        raise InputError(
            f"split {split!r} of {opened.url} has {', '.join(names)}: choose a --source"
        )
    source, view = source or names[0], settings.documents
    view = view.get(source) if isinstance(view, dict) else view
    eod_id = opened.eod_id if eod_id is None else eod_id
    documents = opened.source(split, source, documents=view)
    with progress_bar("writing tokens") as progress:
        done = write(documents, to, format=format, eod_id=eod_id, progress=progress)
    return (
        f"{counted(done.documents, 'document')}, {counted(done.tokens, 'token')}, "
        f"{done.bytes / 1e6:,.1f} MB in {' and '.join(done.files)}"
    )
