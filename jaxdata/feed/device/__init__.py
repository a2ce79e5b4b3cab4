"""Batches on devices: the only part of the feed that knows jax."""

from jaxdata.feed.device.expand import expand
from jaxdata.feed.device.placement import CompactPlacement, DevicePlacement, check_wide

__all__ = ["CompactPlacement", "DevicePlacement", "check_wide", "expand"]
