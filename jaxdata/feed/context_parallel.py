"""The order of slots for context parallelism: every device gets as much of causal attention.

A row is cut into 2n chunks; part *i* of *n* holds chunks *i* and *2n - 1 - i*, one from the head of
the row and one from its tail. Transformer Engine, Megatron-Core and MaxText call it load balanced.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from jaxdata.base.errors import InputError
from jaxdata.feed.layouts import Layout, is_array, map_leaves
from jaxdata.rows.table import Batch, RowTable

A = TypeVar("A")
"""an array, of numpy or JAX"""


def head_tail(array: A, parts: int, axis: int = -1) -> A:
    """An array in the order of a loader with `context_parallel=parts`.

    Args:
        array: of numpy or JAX, its slots in the order of rows.
        parts: *n*; 2n divides the number of slots.
        axis: of the slots.

    >>> import numpy as np
    >>> head_tail(np.arange(8), 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    found: A = _taken(array, _order(parts), axis)
    return found


def in_row_order(array: A, parts: int, axis: int = -1) -> A:
    """The inverse of `head_tail`: slots of a row, or what was computed for them, in its order.

    Args:
        array: of numpy or JAX, its slots in the order of a loader with `context_parallel=parts`.
        parts: *n*; 2n divides the number of slots.
        axis: of the slots.

    >>> import numpy as np
    >>> in_row_order(np.array([0, 1, 6, 7, 2, 3, 4, 5]), 2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    order = _order(parts)
    found: A = _taken(array, [order.index(chunk) for chunk in range(2 * parts)], axis)
    return found


def _order(parts: int) -> list[int]:
    """The chunks, part by part."""
    return [chunk for part in range(parts) for chunk in (part, 2 * parts - 1 - part)]


def _taken(array: Any, chunks: list[int], axis: int) -> Any:
    if len(chunks) == 2:
        return array
    axis %= array.ndim
    before, slots, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    if slots % len(chunks):
        raise _no_multiple(slots, len(chunks) // 2)
    cut = array.reshape(*before, len(chunks), slots // len(chunks), *after)
    return cut[(slice(None),) * axis + (chunks,)].reshape(array.shape)


def _no_multiple(slots: int, parts: int) -> InputError:
    return InputError(
        f"context_parallel={parts} cuts rows into {2 * parts} chunks, which do not divide "
        f"seq_len={slots}: choose a seq_len that is a multiple of {2 * parts}"
    )


def in_parts(layout: Layout, parts: int, table: RowTable | None) -> Layout:
    """A layout whose arrays are in the order of `head_tail`.

    Args:
        layout: whose arrays have their slots in the order of rows.
        parts: *n*; 1 for that order.
        table: of the rows, or of those that they were made of; None if unknown.

    Raises:
        InputError: `parts` do not divide the rows, or the layout makes no sense in another order.
    """
    if parts == 1:
        return layout
    for _, section in table.sections() if table is not None else ():
        if section.seq_len % (2 * parts):
            raise _no_multiple(section.seq_len, parts)
    if getattr(layout, "cu_seqlens", False):
        raise InputError(
            f"cu_seqlens with context_parallel={parts}: they say where documents begin in a row, "
            "and its slots are in another order. Kernels that take cu_seqlens divide each "
            "document among devices themselves: leave context_parallel out; or keep documents "
            "apart by segment_ids and positions, without cu_seqlens"
        )
    return HeadTail(layout, parts)


@dataclass(frozen=True)
class HeadTail:
    """A layout whose arrays have their slots in the order of `head_tail`."""

    layout: Layout
    parts: int

    def __call__(self, batch: Batch, /) -> Any:
        """See `Layout`; raises InputError for an array of which no axis is the sequence."""
        rows, seq_len = next(iter(batch.values())).shape[:2]

        def ordered(name: str, leaf: Any) -> Any:
            if not is_array(leaf) or leaf.ndim == 0 or leaf.shape == (rows,):
                return leaf
            axes = [axis for axis in range(1, leaf.ndim) if leaf.shape[axis] == seq_len]
            if not axes:
                raise InputError(
                    f"context_parallel={self.parts}: {name!r} has shape {leaf.shape}, of which no "
                    f"axis after the first is the sequence, seq_len={seq_len}: leave the array "
                    "out, or order it yourself with jaxdata.feed.context_parallel.head_tail"
                )
            for axis in axes:
                leaf = head_tail(leaf, self.parts, axis)
            return leaf

        return map_leaves(ordered, self.layout(batch))
