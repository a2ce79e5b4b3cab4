"""Batches on devices: the only room of the feed that imports jax.

In the order in which data passes:

notes      what the processes that share a sharding see of each other
placement  the rows and columns that this process holds, put on its devices
expansion  compact batches expanded there, by one jitted function
attention  segment ids as masks for attention in JAX
"""

from jaxdata.feed.device.attention import attention_mask, splash_segment_ids
from jaxdata.feed.device.expansion import expand
from jaxdata.feed.device.notes import board_of
from jaxdata.feed.device.placement import CompactPlacement, DevicePlacement, check_wide

__all__ = [
    "CompactPlacement",
    "DevicePlacement",
    "attention_mask",
    "board_of",
    "check_wide",
    "expand",
    "splash_segment_ids",
]
