"""`jaxdata verify PATH`: whether every file of a dataset is what its manifest says."""

from __future__ import annotations

import json

import click

__all__ = ["verify"]


@click.command(
    epilog="Exits with 0 where the dataset is whole, with 1 where it is not.\n\n"
    "Example: jaxdata verify data/mine"
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option(
    "--threads", type=click.IntRange(1), help="Files to read at a time.  [default: one a core]"
)
def verify(path: str, as_json: bool, threads: int | None) -> int:
    """Compare every file of a dataset with its checksum, and the index with the records.

    PATH is a dataset, or rows that `jaxdata materialize` wrote: a folder or URL. Each shard is
    read once, from beginning to end. What is damaged is named, with what is wrong and what to do.
    """
    from jaxdata.errors import InputError
    from jaxdata.format.foreign import is_foreign
    from jaxdata.format.verify import verify as verify_dataset
    from jaxdata.make.materialize.verify import holds_rows, verify_rows
    from jaxdata.progress import progress_bar

    if is_foreign(path):
        raise InputError(
            f"{path} keeps no checksums to compare with: jaxdata inspect opens it, which checks "
            "its index against the sizes of its files"
        )
    check = verify_rows if holds_rows(path) else verify_dataset
    with progress_bar("verifying", in_bytes=True) as progress:
        found = check(path, threads=threads, progress=progress)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found)
    return 0 if found.whole else 1
