"""The layout of MaxText."""

from __future__ import annotations

from jaxdata.feed.layouts.base import besides, require_rows
from jaxdata.rows.table import Batch


def maxtext(batch: Batch) -> Batch:
    """MaxText's: int32 arrays, with loss where `targets_segmentation` is not 0.

    `inputs`, `targets`, `inputs_position`, `targets_position`, `inputs_segmentation`,
    `targets_segmentation`.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> maxtext(batch)["targets_segmentation"].tolist()
    [1, 0, 2]
    """
    require_rows(batch, "maxtext")
    segments, positions = batch["segment_ids"], batch["positions"]
    return {
        "inputs": batch["inputs"],
        "targets": batch["targets"],
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": segments * batch["loss_mask"],
        **besides(batch),
    }
