"""Batches with the names, dtypes and loss masks of other trainers.

A layout is a function of a batch of numpy arrays, applied in the process that makes the batch,
before any copy to a device. Every layout here gives the same loss, to the last target. To add one,
add it to `LAYOUTS`: configs, commands and error messages take their choices from there.
"""

from jaxdata.feed.layouts.base import Layout, native
from jaxdata.feed.layouts.named import (
    LAYOUTS,
    Named,
    check_layout,
    check_named,
    layout,
    stored_layout,
)
from jaxdata.feed.layouts.trainers import IGNORED, HuggingFace, Megatron, maxtext

__all__ = [
    "IGNORED",
    "LAYOUTS",
    "HuggingFace",
    "Layout",
    "Megatron",
    "Named",
    "check_layout",
    "check_named",
    "layout",
    "maxtext",
    "native",
    "stored_layout",
]
