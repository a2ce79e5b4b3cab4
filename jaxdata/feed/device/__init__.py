"""Batches on devices: the only part of the feed that knows jax."""

from jaxdata.feed.device.attention import attention_mask, splash_segment_ids
from jaxdata.feed.device.expand import expand
from jaxdata.feed.device.placement import CompactPlacement, DevicePlacement, check_wide

__all__ = [
    "CompactPlacement",
    "DevicePlacement",
    "attention_mask",
    "check_wide",
    "expand",
    "splash_segment_ids",
]
