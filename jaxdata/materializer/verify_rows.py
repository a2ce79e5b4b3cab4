"""Whether a folder of materialized rows is, to the last bit, what its `rows.json` says."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from jaxdata.format.storage import open_store
from jaxdata.format.verify.checks import Verification, file_check, totals, verify_files
from jaxdata.format.verify.damage import damage_of_array
from jaxdata.materializer.row_manifest import BATCH_KEY, ROWS, read_rowset
from jaxdata.progress import Advance

_REMEDY = "restore these files from a copy, or materialize the rows again"


def verify_rows(
    path: str | os.PathLike[str], *, threads: int | None = None, progress: Advance | None = None
) -> Verification:
    """Compare every file of materialized rows with its checksum.

    Args:
        path: a folder or URL.
        threads: files read at a time; None for one a core.
        progress: called with (bytes of files done, bytes of all).

    Raises:
        DatasetError: there are no rows, or `rows.json` cannot be read.
    """
    store = open_store(path)
    rowset = read_rowset(store, compare=False)
    shards = rowset.shards
    checks = [file_check(store, one.name, one.sha256, one.bytes) for one in shards]
    if rowset.lanes > 1:
        found = partial(damage_of_array, store, BATCH_KEY, rowset.batch_key, np.uint64, rowset.rows)
        checks.append((0, found))
    return verify_files(
        store,
        ROWS,
        checks,
        threads=threads,
        progress=progress,
        counts={"files": len(shards)} | totals(shards, "rows", "bytes"),
        remedy=_REMEDY,
    )
