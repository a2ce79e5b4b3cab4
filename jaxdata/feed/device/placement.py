"""Batches on devices: the rows and columns that this process holds, put on its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.device.expansion import expand
from jaxdata.feed.trees import is_array, map_leaves
from jaxdata.rows.table import Batch

_REASONS = {"document": "since a source has more than 2^31 documents"}
_AS_STORED = "as it is stored"


def check_wide(dtypes: Mapping[str, Any]) -> None:
    """Refuse arrays of 64 bits if JAX would truncate them to 32."""
    for name, dtype in dtypes.items():
        if jax.dtypes.canonicalize_dtype(dtype) != np.dtype(dtype):
            raise InputError(
                f"{name!r} needs 64 bits, {_REASONS.get(name, _AS_STORED)}, but JAX is "
                "set to 32: set JAX_ENABLE_X64=1, or remove it from extras"
            )


class DevicePlacement:
    """Global arrays of shape (batch, seq), of which this process supplies its devices' shards.

    Args:
        sharding: any `jax.sharding.Sharding` of (batch, seq), in any memory of its devices.
        batch_size: rows of the global batch.
        seq_len: slots of a row.
    """

    works = True

    def __init__(self, sharding: jax.sharding.Sharding, batch_size: int, seq_len: int) -> None:
        self._sharding, self._shape = sharding, (batch_size, seq_len)
        try:
            indices = sharding.addressable_devices_indices_map(self._shape)
        except ValueError as error:
            raise InputError(
                f"a batch of {batch_size} rows of {seq_len} does not divide over the devices of "
                f"{sharding}: {error}"
            ) from None
        self._shards = {
            device: tuple(axis.indices(size) for axis, size in zip(index, self._shape, strict=True))
            for device, index in indices.items()
            if index is not None
        }
        if not self._shards:
            raise InputError(
                f"none of this process's devices is in {sharding}: make the loader only on "
                "processes that hold a shard of the batch"
            )
        self._memory = {
            device: SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
            for device in self._shards
        }
        needed = [np.arange(*rows) for rows, _ in self._shards.values()]
        self.rows: NDArray[np.int64] = np.unique(np.concatenate(needed))
        """offsets in the global batch of the rows that this process reads, increasing"""

    def place(self, batch: Any) -> Any:
        """Global arrays from the local rows; transfers run in the background.

        Constants of a batch, and arrays of no dimension, are Python's.
        """
        return map_leaves(
            lambda name, leaf: self._global(name, leaf) if is_array(leaf) else leaf, batch
        )

    def _global(self, name: str, local: NDArray[Any]) -> Any:
        if not local.ndim:
            return local.item()
        if local.shape[1:] != self._shape[1:]:
            raise InputError(
                f"{name!r} has rows of shape {local.shape[1:]}; with a sharding every array of a "
                f"row must be ({self._shape[1]},). Use shard=(i, n) and copy it to devices yourself"
            )
        return self._join(
            [
                jax.device_put(local[self._local(rows), slice(*columns)], self._memory[device])
                for device, (rows, columns) in self._shards.items()
            ]
        )

    def _local(self, rows: tuple[int, int, int]) -> slice:
        """The local numbers of rows of the global batch."""
        first, last = np.searchsorted(self.rows, (rows[0], rows[1] - 1)).tolist()
        return slice(first, last + 1)

    def _join(self, shards: list[jax.Array]) -> jax.Array:
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)


class CompactPlacement(DevicePlacement):
    """Global arrays from compact batches: each device expands the rows that it holds.

    Args:
        sharding: any `jax.sharding.Sharding` of (batch, seq).
        batch_size: rows of the global batch.
        seq_len: slots of a row.
        positions: where positions restart, `"segment"` or `"row"`.
    """

    def __init__(
        self, sharding: jax.sharding.Sharding, batch_size: int, seq_len: int, positions: str
    ) -> None:
        super().__init__(sharding, batch_size, seq_len)
        self._positions = positions

    def place(self, batch: Batch) -> Any:
        """Global arrays from a compact batch of the local rows."""
        shards = [
            self._expand(batch, device, rows, columns)
            for device, (rows, columns) in self._shards.items()
        ]
        return {name: self._join([shard[name] for shard in shards]) for name in shards[0]}

    def _expand(
        self,
        batch: Batch,
        device: jax.Device,
        rows: tuple[int, int, int],
        columns: tuple[int, int, int],
    ) -> dict[str, jax.Array]:
        here = self._local(rows)
        sent = jax.device_put({name: array[here] for name, array in batch.items()}, device)
        arrays = expand(sent, positions=self._positions, columns=columns[:2])
        placed: dict[str, jax.Array] = jax.device_put(arrays, self._memory[device])
        return placed
