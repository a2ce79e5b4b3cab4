"""Whether a folder of materialised rows is, to the last bit, what its `rows.json` says."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from jaxdata.errors import DatasetError
from jaxdata.format.damage import Damage
from jaxdata.format.storage import Store, open_store
from jaxdata.make.materialize.rowset import ROWS, RowShard, read_rowset
from jaxdata.processes import available_cores
from jaxdata.progress import Advance

__all__ = ["RowVerification", "holds_rows", "verify_rows"]


@dataclass(frozen=True)
class RowVerification:
    """What was found.

    Attributes:
        folder: where the rows are.
        shards: their files.
        rows: rows in them.
        bytes: bytes of the files.
        damage: what is not as it should be; nothing where all is whole.
    """

    folder: str
    shards: int
    rows: int
    bytes: int
    damage: tuple[Damage, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"whole": self.whole} | asdict(self)

    def __str__(self) -> str:
        """Return a line for each damaged file, what to do, and a line for the whole."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += ["restore these files from a copy, or materialize the rows again"] * bool(lines)
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        counts = f"{self.shards:,} files, {self.rows:,} rows, {self.bytes / 1e6:,.1f} MB"
        return "\n".join([*lines, f"{self.folder}: {found} ({counts})"])


def holds_rows(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one of materialised rows."""
    return open_store(path).read(ROWS) is not None


def verify_rows(
    path: str | os.PathLike[str], *, threads: int | None = None, progress: Advance | None = None
) -> RowVerification:
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
    damage: list[Damage] = []
    done, total = 0, sum(shard.bytes for shard in shards)
    with ThreadPoolExecutor(threads or available_cores()) as pool:
        for shard, found in zip(shards, pool.map(partial(_damage, store), shards), strict=True):
            damage += found
            done += shard.bytes
            if progress:
                progress(done, total)
    rows = sum(shard.rows for shard in shards)
    return RowVerification(store.url, len(shards), rows, total, tuple(damage))


def _damage(store: Store, shard: RowShard) -> list[Damage]:
    content = hashlib.sha256()
    try:
        for piece in store.pieces(shard.name):
            content.update(piece)
    except (DatasetError, OSError) as error:
        return [Damage(shard.name, f"it cannot be read: {error}")]
    if content.hexdigest() != shard.sha256:
        return [Damage(shard.name, "its content differs from its checksum")]
    return []
