"""What each block of a source amounts to: the table every epoch stands on, and its cache."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import Store, sealed, unsealed, user_cache

__all__ = ["Blocks", "cached"]

Ints = NDArray[np.int64]


class Blocks(NamedTuple):
    """The columns of the table; int64 (blocks,) each."""

    first: Ints
    """first document, in the order of dealing"""
    documents: Ints
    rows: Ints
    targets: Ints
    """tokens of its documents but the first of each"""
    trained: Ints
    """targets trained in an epoch, stored masks not counted"""
    filled: Ints
    """slots that are not padding"""
    overlap: Ints
    """slots whose target was trained in the window before"""
    begun: Ints
    """documents whose first token is in a row"""


def cached(store: Store | None, key: dict[str, Any], compute: Callable[[], Ints]) -> Ints:
    """The table of a plan, int64 (blocks, 8), from the cache where it was computed before.

    It is kept in the dataset, or where that cannot be written in `$JAXDATA_CACHE`. Documents
    that are in memory only (`store` None) are planned anew each time.
    """
    if store is None:
        return compute()
    name = f"plans/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.npy"
    for place in (store, user_cache()):
        found = _decode(place.read(name))
        if found is not None:
            return found
    table = compute()
    _publish(store, name, table)
    return table


def _decode(data: bytes | None) -> Ints | None:
    """The table, or None where there is none that is whole."""
    content = None if data is None else unsealed(data)
    return None if content is None else np.load(io.BytesIO(content), allow_pickle=False)


def _publish(store: Store, name: str, table: Ints) -> None:
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    content = sealed(buffer.getvalue())
    try:
        store.write(name, content)
    except (OSError, ValueError):  # tensorstore raises ValueError for a refused write
        user_cache().write(name, content)
