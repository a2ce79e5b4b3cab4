"""What each block of a source amounts to: the table every epoch stands on, and its cache."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import LocalStore, Store

__all__ = ["BlockTable", "cached"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BlockTable:
    """One line a block, int64 (blocks, 6), with names for its columns."""

    table: Ints

    @property
    def first(self) -> Ints:
        """First document of each block, in the order of dealing."""
        return self.table[:, 0]

    @property
    def documents(self) -> Ints:
        """Documents of each block."""
        return self.table[:, 1]

    @property
    def rows(self) -> Ints:
        """Rows of each block."""
        return self.table[:, 2]

    @property
    def trained(self) -> Ints:
        """Targets trained in an epoch, stored masks not counted."""
        return self.table[:, 3]

    @property
    def filled(self) -> Ints:
        """Slots that are not padding."""
        return self.table[:, 4]

    @property
    def overlap(self) -> Ints:
        """Slots whose target was trained in the window before."""
        return self.table[:, 5]


def cached(store: Store | None, key: dict[str, Any], compute: Callable[[], Ints]) -> BlockTable:
    """The table of a plan, from the cache where it was computed before.

    It is kept in the dataset, or where that cannot be written in `$JAXDATA_CACHE`. Documents
    that are in memory only (`store` None) are planned anew each time.
    """
    if store is None:
        return BlockTable(compute())
    name = f"plans/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.npy"
    for place in (store, _user_cache()):
        data = place.read(name)
        if data is not None:
            return BlockTable(np.load(io.BytesIO(data), allow_pickle=False))
    table = compute()
    _publish(store, name, table)
    return BlockTable(table)


def _publish(store: Store, name: str, table: Ints) -> None:
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    try:
        store.write(name, buffer.getvalue())
    except (OSError, ValueError):  # tensorstore raises ValueError for a refused write
        _user_cache().write(name, buffer.getvalue())


def _user_cache() -> LocalStore:
    default = Path("~/.cache/jaxdata").expanduser()
    return LocalStore(os.environ.get("JAXDATA_CACHE", default))
