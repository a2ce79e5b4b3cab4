"""Batches on devices: the rows and columns that this process holds, put on its devices.

Besides the trainer, the only file that imports jax.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.feed.batches import Placement
from jaxdata.feed.layouts import is_array, map_leaves
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.steering import Board
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.reading import check_extras, extra_dtype


def attention_mask(segment_ids_BxL: jax.Array) -> jax.Array:
    """The causal mask within segments, for `jax.nn.dot_product_attention(…, mask=mask)`.

    Bool (batch, 1, seq_len, seq_len), True where a slot (row) attends to another (column). Padding
    counts as segment 0: it attends only to padding, and nothing else attends to it. No row of the
    mask is empty, so that no softmax gives NaN.
    """
    same_BxLxL = segment_ids_BxL[:, :, None] == segment_ids_BxL[:, None, :]
    return (same_BxLxL & jnp.tri(segment_ids_BxL.shape[1], dtype=bool))[:, None]


def splash_segment_ids(segment_ids_BxL: jax.Array) -> Any:
    """The ids for splash attention on TPU, which `jax.vmap` maps over the batch.

    kernel = make_splash_mha(MultiHeadMask([CausalMask((L, L))] * heads), …)
    out_BxNxLxH = jax.vmap(kernel)(query, key, value, splash_segment_ids(segment_ids))
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    return SegmentIds(q=segment_ids_BxL, kv=segment_ids_BxL)


@partial(jax.jit, static_argnames="sources")
def sums_by_source(
    source_BxL: jax.Array, mask_BxL: jax.Array, losses_BxL: jax.Array, sources: int
) -> tuple[jax.Array, jax.Array]:
    """See `jaxdata.losses_by_source`; of a global batch the sums are those over all devices."""

    def of(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        mine_BxL = mask_BxL & (source_BxL == number)
        return jnp.sum(jnp.where(mine_BxL, losses_BxL, 0)), jnp.sum(mine_BxL)

    return jax.vmap(of)(jnp.arange(sources))


class JaxNotes(Board):
    """The service by which processes of JAX coordinate."""

    def __init__(self, client: Any, processes: Sequence[int]) -> None:
        self._client = client
        self.scope = f"jaxdata/{','.join(map(str, processes))}"
        self.process, self.processes = f"process {jax.process_index()}", len(processes)
        self.leads = jax.process_index() == processes[0]

    def add(self, key: str, number: int) -> int:
        return int(self._client.key_value_increment(f"{self.scope}/{key}", number))

    def put(self, key: str, note: str) -> None:
        self._client.key_value_set(f"{self.scope}/{key}", note, allow_overwrite=True)

    def get(self, key: str) -> str:
        try:
            return str(self._client.key_value_try_get(f"{self.scope}/{key}"))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return ""


def board_of(sharding: jax.sharding.Sharding) -> Board | None:
    """The board of the processes that a sharding spans; None for one, or without such a service."""
    devices: Any = sharding.device_set
    processes = sorted({device.process_index for device in devices})
    if len(processes) == 1:
        return None
    try:  # no public name; Orbax uses this one as well
        from jax._src.distributed import global_state
    except ImportError:
        return None
    client = global_state.client
    return JaxNotes(client, processes) if hasattr(client, "key_value_increment") else None


def check_wide(dtypes: Mapping[str, Any]) -> None:
    """Refuse arrays of 64 bits if JAX would truncate them to 32."""
    for name, dtype in dtypes.items():
        if jax.dtypes.canonicalize_dtype(dtype) != np.dtype(dtype):
            why = "since a source has more than 2^31 documents" * (name == "document")
            raise InputError(
                f"{name!r} needs 64 bits, {why or 'as it is stored'}, but JAX is set to 32: set "
                "JAX_ENABLE_X64=1, or remove it from extras"
            )


def placement(
    rows: Any, sharding: jax.sharding.Sharding, settings: LoaderSection, size: int, row: int
) -> "DevicePlacement":
    """The placement for batches of `size` rows like `row`."""
    table = row_table(rows)
    if table is None:
        return DevicePlacement(sharding, size, len(next(iter(rows[row].values()))))
    extras = check_extras(settings.extras, table)
    check_wide({name: extra_dtype(table, name) for name in extras})
    return DevicePlacement(sharding, size, table.section_at(row).seq_len)


class DevicePlacement(Placement):
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
        devices: Any = sharding.device_set
        self.hosts = len({device.process_index for device in devices})
        self.shards = batch_size // sharding.shard_shape(self._shape)[0]
        needed = [np.arange(*rows) for rows, _ in self._shards.values()]
        self.rows = np.unique(np.concatenate(needed))

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
        shards = []
        for device, (rows, columns) in self._shards.items():
            first, last = np.searchsorted(self.rows, (rows[0], rows[1] - 1)).tolist()
            own = local[first : last + 1, slice(*columns)]
            shards.append(jax.device_put(own, self._memory[device]))
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)
