"""The one room that knows where bytes live: a folder on disk, or an object store.

A store holds named byte strings and one-dimensional arrays below a root; names are relative and
use `/`. Nothing outside this room may assume a local path.
"""

from __future__ import annotations

import os

from jaxdata.errors import InputError
from jaxdata.format.storage.contract import Store, Views, unwritable
from jaxdata.format.storage.kept import (
    DIGEST_BYTES,
    KEPT_ARRAYS,
    kept_file,
    sealed,
    unsealed,
    user_cache,
)
from jaxdata.format.storage.local import LocalStore, map_file
from jaxdata.format.storage.remote import RemoteStore
from jaxdata.format.storage.zarr import array_pieces

__all__ = [
    "DIGEST_BYTES",
    "KEPT_ARRAYS",
    "LocalStore",
    "RemoteStore",
    "Store",
    "Views",
    "array_pieces",
    "kept_file",
    "map_file",
    "open_store",
    "sealed",
    "unsealed",
    "unwritable",
    "user_cache",
]


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the root of a dataset: a local path, `gs://…`, `s3://…` or `memory://…`."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if scheme == "file":
        return LocalStore(rest)
    if scheme in ("gs", "s3", "memory"):
        return RemoteStore(text)
    raise InputError(f"cannot open {text!r}: expected a local path, gs://, s3:// or memory://")
