"""`jaxdata mirror SOURCE TARGET`: copy a dataset between folders and buckets."""

from __future__ import annotations

import click


@click.command(
    epilog="Example: jaxdata mirror gs://bucket/mine data/mine\n\nTo go on after an interruption, "
    "run the same command again."
)
@click.argument("source")
@click.argument("target")
@click.option(
    "--threads", type=click.IntRange(1), default=8, show_default=True, help="Files at a time."
)
def mirror(source: str, target: str, threads: int) -> None:
    """Copy a converted dataset, or what a copy of it lacks.

    SOURCE and TARGET are folders or URLs (gs://, s3://), in any direction. Every file is compared
    with its checksum while it is copied, and the manifest comes last: a copy that is not whole
    cannot be opened. Of a copy that is there, every file is read, and only what is missing or
    differs is copied. TARGET must be empty, or a copy of this dataset.
    """
    from jaxdata.errors import InputError
    from jaxdata.format.foreign import is_foreign
    from jaxdata.format.mirroring import mirror as copy
    from jaxdata.look.terminal import counted
    from jaxdata.progress import progress_bar

    if is_foreign(source):
        raise InputError(
            f"{source} has no checksums to compare with: copy its files with another tool, or "
            "convert it"
        )
    try:
        with progress_bar("copying", in_bytes=True) as progress:
            done = copy(source, target, threads=threads, progress=progress)
    except KeyboardInterrupt:
        raise click.Abort("What was copied is kept: run the same command to go on") from None
    click.echo(
        f"{done.url}: {counted(done.copied, 'file')} ({done.copied_bytes / 1e6:,.1f} MB) copied, "
        f"{done.kept:,} were there; whole: {counted(done.shards, 'shard')}, "
        f"{counted(done.documents, 'document')}; took {done.seconds:,.1f} s"
    )
