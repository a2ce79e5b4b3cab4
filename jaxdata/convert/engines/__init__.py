"""Who converts the units: processes of this machine, or a Ray cluster. The bytes are the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from jaxdata.convert.engines.base import Engine, Stopped
from jaxdata.convert.engines.local import LocalEngine
from jaxdata.convert.job import Job
from jaxdata.errors import InputError

__all__ = ["Engine", "EngineName", "MakeEngine", "Stopped", "choose_engine"]

EngineName = Literal["local", "ray"]
MakeEngine = Callable[[Job, Callable[[int], None]], Engine]
"""From the job, and who is told of bytes of input done, to the engine."""


def choose_engine(name: str, workers: int | None, ray_address: str | None) -> MakeEngine:
    """Return what makes the engine of this name; `workers` is None for as many as fit."""
    if name not in get_args(EngineName):
        raise InputError(f"engine={name!r}; expected one of {get_args(EngineName)}")
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}; expected 1 or more")
    if name == "ray":
        from jaxdata.convert.engines.cluster import RayEngine

        return partial(RayEngine, workers=workers, address=ray_address)
    if ray_address is not None:
        raise InputError(f"ray_address={ray_address!r} is for engine='ray'; this is {name!r}")
    return partial(LocalEngine, workers=workers)
