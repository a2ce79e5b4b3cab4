"""Where bytes live: a folder on disk, or an object store.

A store holds named byte strings and one-dimensional arrays below a root; names are relative and use
`/`. One client asks all buckets, and what it fetched of a dataset is kept on this host in pages.
Inputs are objects with a version. Nothing outside this room may assume a local path.
"""

import os

from jaxdata.base.errors import InputError
from jaxdata.storage.contract import BUCKETS, Store, local_path
from jaxdata.storage.local import LocalStore
from jaxdata.storage.pages.page_cache import cache_root
from jaxdata.storage.remote import RemoteStore

__all__ = ["LocalStore", "Store", "cache_root", "local_path", "open_store"]


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the root of a dataset: a local path, `gs://…`, `s3://…`, `az://…` or `memory://…`."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return LocalStore(rest if separator else text)
    if scheme in (*BUCKETS, "memory"):
        return RemoteStore(text)
    raise InputError(
        f"cannot open {text!r}: expected a local path, gs://, s3://, az:// or memory://"
    )
