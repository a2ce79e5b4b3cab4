"""Whether a folder of materialised rows is, to the last bit, what its `rows.json` says."""

from __future__ import annotations

import os
from functools import partial

from jaxdata.format.storage import open_store
from jaxdata.format.verify.checks import Verification, run_checks
from jaxdata.format.verify.damage import damage_of_file, damage_of_manifest
from jaxdata.make.materialize.rowset import ROWS, read_rowset
from jaxdata.progress import Advance

__all__ = ["verify_rows"]

_REMEDY = "restore these files from a copy, or materialize the rows again"


def verify_rows(
    path: str | os.PathLike[str], *, threads: int | None = None, progress: Advance | None = None
) -> Verification:
    """Compare every file of materialised rows with its checksum.

    Args:
        path: a folder or URL.
        threads: files read at a time; None for one a core.
        progress: called with (bytes of files done, bytes of all).

    Raises:
        DatasetError: there are no rows, or their description cannot be read.
    """
    store = open_store(path)
    shards = read_rowset(store).shards
    damage, unchecked = damage_of_manifest(store, ROWS)
    checks = [
        (one.bytes, partial(damage_of_file, store, one.name, one.sha256, one.bytes))
        for one in shards
    ]
    sums = {what: sum(getattr(shard, what) for shard in shards) for what in ("rows", "bytes")}
    return Verification(
        path=store.url,
        counts={"files": len(shards)} | sums,
        damage=damage or run_checks(checks, threads, progress),
        remedy=_REMEDY,
        unchecked=unchecked,
    )
