"""Engines do the units of a job: in processes of this machine, or on a Ray cluster.

The dataset is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from jaxdata.base.errors import InputError
from jaxdata.converter.engines.base import Engine, LocalEngine, ProgressSum, Stopped, Work

__all__ = ["Engine", "EngineName", "MakeEngine", "ProgressSum", "Stopped", "Work", "choose_engine"]

EngineName = Literal["local", "ray"]
MakeEngine = Callable[[Work, Callable[[int], None]], Engine]
"""Makes an engine of a job and a callback for bytes of input done."""


def choose_engine(name: str, workers: int | None, ray_address: str | None) -> MakeEngine:
    """Return what makes the engine of this name; `workers` None for one a core."""
    if name not in get_args(EngineName):
        raise InputError(f"engine={name!r}; expected one of {get_args(EngineName)}")
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}; expected 1 or more")
    if name == "ray":
        from jaxdata.converter.engines.ray import RayEngine

        return partial(RayEngine, workers=workers, address=ray_address)
    if ray_address is not None:
        raise InputError(f"ray_address={ray_address!r} is for engine='ray'; this is {name!r}")
    return partial(LocalEngine, workers=workers)
