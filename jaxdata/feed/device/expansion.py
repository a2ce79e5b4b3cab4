"""Compact batches expanded on the device: one jitted function makes their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

_IDS = ("source", "document")
_COLUMNS = {"tokens", "slots", "context", "ended", "mask", *_IDS}
"""Arrays that are laid out here; all others are side arrays, with a value for every slot."""


@partial(jax.jit, static_argnames=("positions", "columns"))
def expand(
    batch: Mapping[str, jax.Array],
    positions: str = "segment",
    columns: tuple[int, int] | None = None,
) -> dict[str, jax.Array]:
    """Expand a compact batch (`rows.compact`); equal to the host's arrays, to the bit.

    Args:
        batch: a batch that `compact` yields.
        positions: where positions restart, `"segment"` or `"row"`.
        columns: the first slot wanted of each row, and the one after the last; None for all.

    Returns:
        `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool), each
        (batch, seq_len) or as many columns as are wanted; `source` and `document` if the batch has
        them, -1 in padding; side arrays as they are.
    """
    first, stop = columns or (None, None)
    # Outside of a jitted function the bounds would be transfers, which jax_transfer_guard forbids.
    return {name: array[:, first:stop] for name, array in _whole_rows(batch, positions).items()}


def _whole_rows(batch: Mapping[str, jax.Array], positions: str) -> dict[str, jax.Array]:
    tokens_BxT, slots_BxS = batch["tokens"], batch["slots"].astype(jnp.int32)
    slot_L = jnp.arange(tokens_BxT.shape[1] - slots_BxS.shape[1])
    ends_BxS = jnp.cumsum(slots_BxS, axis=1)
    segment_BxL = _segment_of_slot(ends_BxS, slots_BxS, len(slot_L))
    inside_BxL = slot_L < ends_BxS[:, -1:]

    def of_segment(values_BxS: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values_BxS, segment_BxL, axis=1)

    def tokens_at(index_BxL: jax.Array) -> jax.Array:
        tokens_BxL = jnp.take_along_axis(tokens_BxT, index_BxL, axis=1).astype(jnp.int32)
        return jnp.where(inside_BxL, tokens_BxL, 0)

    position_BxL = slot_L - of_segment(ends_BxS - slots_BxS)
    last_BxL = position_BxL == of_segment(slots_BxS) - 1
    loss_BxL = (position_BxL >= of_segment(batch["context"])) & ~(
        last_BxL & of_segment(batch["ended"])
    )
    extras = {name: of_segment(batch[name]) for name in _IDS if name in batch}
    return {
        # A segment has one token more than slots.
        "inputs": tokens_at(slot_L + segment_BxL),
        "targets": tokens_at(slot_L + segment_BxL + 1),
        "loss_mask": inside_BxL & loss_BxL & batch.get("mask", True),
        "segment_ids": jnp.where(inside_BxL, segment_BxL + 1, 0),
        "positions": jnp.where(inside_BxL, position_BxL if positions == "segment" else slot_L, 0),
        **{name: jnp.where(inside_BxL, values, -1) for name, values in extras.items()},
        **{name: values for name, values in batch.items() if name not in _COLUMNS},
    }


def _segment_of_slot(ends_BxS: jax.Array, slots_BxS: jax.Array, seq_len: int) -> jax.Array:
    """Number of each slot's segment; for padding, of the last segment."""
    rows_B = jnp.arange(len(ends_BxS))[:, None]
    # The end of a segment is the start of the next one; the end of the last is not counted.
    follows_BxS = jnp.roll(slots_BxS, -1, axis=1).at[:, -1].set(0) > 0
    counted_BxL = jnp.zeros((len(ends_BxS), seq_len), jnp.int32)
    counted_BxL = counted_BxL.at[rows_B, ends_BxS].add(follows_BxS.astype(jnp.int32), mode="drop")
    return jnp.cumsum(counted_BxL, axis=1)
