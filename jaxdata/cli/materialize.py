"""`jaxdata materialize`: export the packed rows of a run."""

from __future__ import annotations

import time
from typing import Any

import click

from jaxdata.base.wording import counted
from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config
from jaxdata.feed.layouts import LAYOUTS
from jaxdata.foreign.record_formats import RECORD_FORMATS


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


@click.command(**OVERRIDABLE, epilog="To resume an interrupted export, run the same command again.")
@takes_config
@click.option("--output", required=True, help="Folder or URL for the files; created if missing.")
@click.option(
    "--layout",
    metavar="NAME",
    help=f"Trainer whose array names, dtypes and masks are used: {', '.join(LAYOUTS)}.  "
    "[default: the config's]",
)
@click.option(
    "--record-format",
    type=click.Choice([*RECORD_FORMATS]),
    default="plain",
    show_default=True,
    help="Raw bytes of the arrays, or a tf.train.Example of int64 lists.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Training order, mixed and shuffled; or every source once, in dataset order.",
)
@click.option(
    "--split", help="Export every source of this split once.  [default: the training split]"
)
@click.option("--rows", type=_Range(), default=":", help="Range of rows to export.  [default: all]")
@click.option(
    "--shard-rows",
    type=click.IntRange(1),
    help="Rows per file.  [default: as many as fit in 128 MiB]",
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per core]")
def materialize(
    config: str,
    output: str,
    layout: str | None,
    record_format: str,
    shuffle: bool,
    split: str | None,
    rows: tuple[int, int | None],
    shard_rows: int | None,
    workers: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Export the packed rows of a run as ArrayRecord files, one row per record.

    For programs that only read records sequentially, such as MaxText; jaxdata itself needs no such
    copy. OUTPUT/rows.json, written last, describes the files. Any field of the config can be set:

    \b
        jaxdata materialize --config pretrain.yaml --output rows/ --pack.seq_len 4096
        jaxdata materialize --config pretrain.yaml --output maxtext/ --pack.strategy concat \\
            --layout maxtext --record-format tf_example
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.base.progress import progress_bar
    from jaxdata.config import build_rows
    from jaxdata.foreign.materialize import materialize as write

    settings = read_config(config, overrides)
    training = shuffle and split in (None, settings.split)
    started = time.perf_counter()
    try:
        with progress_bar("writing rows") as progress:
            done = write(
                build_rows(settings, split, shuffle=shuffle),
                output,
                layout=layout or settings.loader.layout,
                record_format=record_format,
                first_row=rows[0],
                stop_row=rows[1],
                skip_rows=[(a, b) for a, b in settings.loader.skip_rows] if training else (),
                shard_rows=shard_rows,
                extras=settings.loader.extras,
                workers=workers,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise click.Abort("Finished files are kept: run the same command to continue") from None
    size = sum(shard.bytes for shard in done.shards)
    click.echo(
        f"{counted(done.rows, 'row')}, {done.trained_tokens:,} trained tokens, "
        f"{counted(len(done.shards), 'file')}, {size / 1e6:,.1f} MB in {output}; took "
        f"{time.perf_counter() - started:,.1f} s"
    )
