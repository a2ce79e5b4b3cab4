"""`jaxdata verify PATH`: compare every file of a dataset with its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jaxdata.dataset.verify import Verification


@click.command(
    epilog="Exit code 0 if the dataset is intact, 1 if it is not.\n\n"
    "Example: jaxdata verify data/mine"
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option(
    "--threads", type=click.IntRange(1), help="Files to read at once.  [default: one per core]"
)
def verify(path: str, as_json: bool, threads: int | None) -> int:
    """Compare every file of a dataset with its checksum.

    PATH is the folder or URL of a dataset, or of rows exported by `jaxdata materialize`. Every file
    is read once. Damaged files are listed, with the damage and the remedy.
    """
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.look.terminal import printable_lines

    if is_foreign(path):
        raise InputError(
            f"{path} has no checksums to compare with. Use jaxdata inspect: opening it checks its "
            "index against the sizes of its files"
        )
    with progress_bar("verifying", in_bytes=True) as progress:
        found = _checker(path)(path, threads=threads, progress=progress)
    lines = json.dumps(found.as_json(), indent=1) if as_json else printable_lines(str(found))
    click.echo(lines)
    return 0 if found.whole else 1


def _checker(path: str) -> Callable[..., Verification]:
    """The function that verifies this kind of folder."""
    from jaxdata.base.errors import DatasetError
    from jaxdata.dataset.manifest import MANIFEST
    from jaxdata.dataset.verify import verify as verify_dataset
    from jaxdata.foreign.row_manifest import ROWS
    from jaxdata.foreign.row_records import verify_rows
    from jaxdata.storage import open_store

    store = open_store(path)
    for name, check in ((MANIFEST, verify_dataset), (ROWS, verify_rows)):
        if store.read(name) is not None:
            return check
    if not store.list():
        raise DatasetError(
            f"{store.url} does not exist, or is empty: expected a dataset or exported rows"
        )
    raise DatasetError(
        f"{store.url} has neither {MANIFEST} (a dataset) nor {ROWS} (exported rows). If a command "
        "was interrupted, run it again to finish it; otherwise restore that file from a backup"
    )
