"""`jaxdata materialize`: the rows of a config as files of records."""

from __future__ import annotations

import time
from typing import Any

import click

__all__ = ["materialize"]


class _Range(click.ParamType[Any]):
    """`A:B`, either of them left out at will."""

    name = "A:B"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        first, colon, stop = value.partition(":")
        if not colon or not all(part == "" or part.isdecimal() for part in (first, stop)):
            self.fail(f"{value!r}: expected rows like 0:1000, :1000 or 1000:", param, ctx)
        return int(first or 0), int(stop) if stop else None


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="An interrupted command goes on where it stopped when it is given again.",
)
@click.option("--config", required=True, help="A YAML file, or the name of one that is shipped.")
@click.option("--output", required=True, help="A folder or URL for the files. Made if need be.")
@click.option(
    "--layout",
    help="Whose names and masks: jaxdata, maxtext, hf or megatron.  [default: the config's]",
)
@click.option(
    "--record-format",
    type=click.Choice(["plain", "tf_example"]),
    default="plain",
    show_default=True,
    help="The bytes of the arrays, or a tf.train.Example of int64 lists.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="In the order of training, mixed and shuffled; or every source once, in the order of "
    "the dataset.",
)
@click.option("--split", help="Another split than the one the config trains on: its sources once.")
@click.option("--rows", type=_Range(), default=":", help="Only these.  [default: all]")
@click.option("--shard-rows", type=click.IntRange(1), help="Rows a file.  [default: 128 MiB]")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one a core]")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
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
    """Write the packed rows of a run as ArrayRecord files, one record a row.

    For programs that only read records in order, such as MaxText; a run of jaxdata's own needs no
    such copy. OUTPUT/rows.json, written last, says what is in the files. Any field of the config
    can be set after it:

    \b
        jaxdata materialize --config pretrain.yaml --output rows/ --pack.seq_len 4096
        jaxdata materialize --config pretrain.yaml --output maxtext/ --pack.strategy concat \\
            --layout maxtext --record-format tf_example
    """  # noqa: D301 - \b is a mark of click's
    import jaxdata
    from jaxdata.config import build_rows, load_config, parse_overrides
    from jaxdata.progress import progress_bar

    settings = load_config(config, parse_overrides(overrides))
    training = shuffle and split in (None, settings.split)
    started = time.perf_counter()
    try:
        with progress_bar("writing rows") as progress:
            done = jaxdata.materialize(
                build_rows(settings, split, shuffle=shuffle),
                output,
                layout=layout or settings.loader.layout,
                record_format=record_format,
                first_row=rows[0],
                stop_row=rows[1],
                skip_rows=[(a, b) for a, b in settings.loader.skip_rows] if training else (),
                shard_rows=shard_rows,
                workers=workers,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise click.Abort("What is done is kept: the same command goes on from there") from None
    size = sum(shard.bytes for shard in done.shards)
    click.echo(
        f"{done.rows:,} rows, {done.trained_tokens:,} trained tokens, {len(done.shards)} "
        f"file{'s' * (len(done.shards) != 1)}, {size / 1e6:,.1f} MB in {output}; took "
        f"{time.perf_counter() - started:,.1f} s"
    )
