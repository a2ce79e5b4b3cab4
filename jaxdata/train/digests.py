"""A fingerprint of the rows of a step, the same on any number of devices and hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby

import jax
import numpy as np
from jax.experimental import multihost_utils

FIELDS = {
    "inputs": np.int32,
    "targets": np.int32,
    "loss_mask": np.bool_,
    "segment_ids": np.int32,
    "positions": np.int32,
}


def row_digests(batch: Mapping[str, jax.Array | np.ndarray]) -> np.ndarray:
    """SHA-256 over the five arrays of each row in this process; `uint8 (rows, 32)`."""
    arrays: list[np.ndarray] = [
        np.asarray(_own_rows(batch[name]), dtype) for name, dtype in FIELDS.items()
    ]
    digests = [
        hashlib.sha256(b"".join(row.tobytes() for row in rows)).digest()
        for rows in zip(*arrays, strict=True)
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def batch_digest(batch: Mapping[str, jax.Array | np.ndarray]) -> str:
    """The digest of a whole batch, 32 hex digits, from the digests of its rows in order."""
    return _combine(row_digests(batch))


def gather_digests(parts: Sequence[np.ndarray]) -> list[str]:
    """The digests of whole batches, from the `row_digests` of this process's rows of each.

    A collective operation: every process has to call it, for the same batches.
    """
    if jax.process_count() == 1 or not parts:
        return [_combine(rows) for rows in parts]
    of_a_size = [np.stack(list(group)) for _, group in groupby(parts, key=len)]
    gathered = [np.asarray(multihost_utils.process_allgather(stacked)) for stacked in of_a_size]
    # each (processes, batches, rows, 32)
    return [_combine(rows) for each in gathered for rows in each.swapaxes(0, 1)]


def _combine(digests: np.ndarray) -> str:
    return hashlib.sha256(digests.tobytes()).hexdigest()[:32]


def _own_rows(array: jax.Array | np.ndarray) -> np.ndarray:
    """The rows on devices of this process, in order."""
    if isinstance(array, np.ndarray):
        return array
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])
