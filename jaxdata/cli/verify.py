"""`jaxdata verify PATH`: whether every file of a dataset is what its manifest says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jaxdata.format.verify import Verification

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

    PATH is a dataset, or rows that `jaxdata materialize` wrote: a folder or URL. Each file is
    read once, from beginning to end. What is damaged is named, with what is wrong and what to do.
    """
    from jaxdata.errors import InputError
    from jaxdata.format.foreign import is_foreign
    from jaxdata.progress import progress_bar

    if is_foreign(path):
        raise InputError(
            f"{path} keeps no checksums to compare with: jaxdata inspect opens it, which checks "
            "its index against the sizes of its files"
        )
    with progress_bar("verifying", in_bytes=True) as progress:
        found = _checker(path)(path, threads=threads, progress=progress)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found)
    return 0 if found.whole else 1


def _checker(path: str) -> Callable[..., Verification]:
    """What verifies that which a folder holds."""
    from jaxdata.errors import DatasetError
    from jaxdata.format.manifest import MANIFEST
    from jaxdata.format.storage import open_store
    from jaxdata.format.verify import verify as verify_dataset
    from jaxdata.make.materialize.rowset import ROWS
    from jaxdata.make.materialize.verify import verify_rows

    store = open_store(path)
    for name, check in ((MANIFEST, verify_dataset), (ROWS, verify_rows)):
        if store.read(name) is not None:
            return check
    raise DatasetError(
        f"{store.url} has neither {MANIFEST}, as a dataset has, nor {ROWS}, as materialised rows "
        "have. Where jaxdata was interrupted, the same command finishes it; else restore that "
        "file from a copy"
    )
