"""Where bytes live: a folder on disk, or an object store.

A store holds named byte strings and one-dimensional arrays below a root; names are relative and use
`/`. One client asks all buckets, and what it fetched of a dataset is kept on this host in pages.
Inputs are objects with a version. Nothing outside this room may assume a local path.
"""

from __future__ import annotations

import os

from jaxdata.base.errors import InputError
from jaxdata.storage.contract import Store, unwritable
from jaxdata.storage.credentials import BUCKETS
from jaxdata.storage.local import LocalStore, local_path
from jaxdata.storage.maps import map_file, map_handle
from jaxdata.storage.pages.page_cache import (
    cache_root,
    close_caches,
    most_ahead,
    page_cache,
    read_counts,
)
from jaxdata.storage.pages.page_folder import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges, StoredFile
from jaxdata.storage.pages.read_counts import ReadCounts
from jaxdata.storage.remote import RemoteStore
from jaxdata.storage.zarr import scan_array

__all__ = [
    "PAGE_BYTES",
    "LocalStore",
    "PageRanges",
    "PagedFiles",
    "ReadCounts",
    "RemoteStore",
    "Store",
    "StoredFile",
    "cache_root",
    "close_caches",
    "local_path",
    "map_file",
    "map_handle",
    "most_ahead",
    "open_store",
    "page_cache",
    "read_counts",
    "scan_array",
    "unwritable",
]


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the root of a dataset: a local path, `gs://…`, `s3://…`, `az://…` or `memory://…`."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if scheme == "file":
        return LocalStore(rest)
    if scheme in (*BUCKETS, "memory"):
        return RemoteStore(text)
    msc = "; give what the profile of msc:// stands for" if scheme == "msc" else ""
    raise InputError(
        f"cannot open {text!r}: expected a local path, gs://, s3://, az:// or memory://{msc}"
    )
