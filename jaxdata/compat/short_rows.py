"""Rows of random shorter length, as Cerebras' `short_seq_prob` makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.errors import InputError


def short_rows(rows: Any, rate: float, seed: int = 0) -> Any:
    """Shorten some rows: what comes after a random slot becomes padding, and is not trained.

    Args:
        rows: rows of `jaxdata.pack`, or any `grain.MapDataset` of dicts of arrays of one length.
        rate: the share of rows that are shortened, to 1 slot up to two less than they have.
        seed: root of the choices; what becomes of row *i* depends on it and *i* alone.

    Returns:
        A `grain.MapDataset` of the same rows, some of them shorter; a Loader takes it.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([np.arange(1, 10)]), seq_len=8)
    >>> short_rows(rows, 1.0)[0]["inputs"].tolist()
    [1, 2, 3, 4, 5, 6, 0, 0]
    """
    if not 0 <= rate <= 1:
        raise InputError(f"rate={rate}: expected a number from 0 to 1")

    def shorten(row: dict[str, Any], chance: np.random.Generator) -> dict[str, Any]:
        if chance.random() >= rate:
            return row
        length = len(next(iter(row.values())))
        kept = np.arange(length) < chance.integers(1, max(2, length - 1))
        return {name: np.where(kept, array, 0).astype(array.dtype) for name, array in row.items()}

    return rows.random_map(shorten, seed=seed)
