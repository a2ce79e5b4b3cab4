"""The files of a dataset, to compare: all but its history, which says when it was made, and how."""

import hashlib
from pathlib import Path

from jaxdata.dataset.history import HISTORY
from jaxdata.storage import open_store


def tree(folder: Path) -> dict[str, str]:
    """Name of each file -> the sha256 of it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != HISTORY)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def copy_tree(folder: Path, url: str) -> None:
    """Copy the files of a folder to a bucket, as any tool would."""
    store = open_store(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.write(path.relative_to(folder).as_posix(), path.read_bytes())
