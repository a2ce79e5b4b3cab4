"""Batches on devices: which rows and columns this process holds, and putting them there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.assembly import Batch

__all__ = ["DevicePlacement"]


class DevicePlacement:
    """Global arrays of shape (batch, seq), of which this process supplies its devices' parts.

    Args:
        sharding: any ``jax.sharding.Sharding`` of (batch, seq).
        batch_size: rows of the global batch.
        seq_len: slots of a row.
    """

    def __init__(self, sharding: jax.sharding.Sharding, batch_size: int, seq_len: int) -> None:
        self._sharding, self._shape = sharding, (batch_size, seq_len)
        try:
            indices = sharding.addressable_devices_indices_map(self._shape)
        except ValueError as error:
            raise InputError(
                f"a batch of {batch_size} rows of {seq_len} does not divide over the devices of "
                f"{sharding}: {error}"
            ) from None
        self._parts = {
            device: tuple(part.indices(size) for part, size in zip(index, self._shape, strict=True))
            for device, index in indices.items()
            if index is not None
        }
        needed = [np.arange(*rows) for rows, _ in self._parts.values()]
        self.rows: NDArray[np.int64] = np.unique(np.concatenate(needed))
        """offsets in the global batch of the rows that this process reads, increasing"""

    def place(self, batch: Batch) -> dict[str, jax.Array]:
        """Global arrays from the local rows; transfers run in the background."""
        return {name: self._global(name, array) for name, array in batch.items()}

    def _global(self, name: str, local: NDArray[Any]) -> jax.Array:
        if local.shape[1:] != self._shape[1:]:
            raise InputError(
                f"{name!r} has rows of shape {local.shape[1:]}; with a sharding every array of a "
                f"row must be ({self._shape[1]},). Use shard=(i, n) and place it yourself"
            )
        pieces = [
            jax.device_put(self._piece(local, rows, columns), device)
            for device, (rows, columns) in self._parts.items()
        ]
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, pieces)

    def _piece(
        self, local: NDArray[Any], rows: tuple[int, int, int], columns: tuple[int, int, int]
    ) -> NDArray[Any]:
        first, last = np.searchsorted(self.rows, (rows[0], rows[1] - 1)).tolist()
        return local[first : last + 1, slice(*columns)]
