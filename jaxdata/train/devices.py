"""Which devices a run has, in one process or many, and how its arrays lie on them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdata.errors import InputError

__all__ = ["Cluster", "batch_sharding", "data_mesh", "prepare", "replicated"]


@dataclass(frozen=True)
class Cluster:
    """One process of several: where process 0 listens, how many there are, which one this is."""

    coordinator: str
    num_processes: int
    process_id: int


def prepare(
    *,
    deterministic: bool = True,
    cluster: Cluster | None = None,
    compilation_cache: Path | None = None,
) -> None:
    """Set JAX up for a run; to be called before anything has asked for a device."""
    if deterministic:
        _add_xla_flags("--xla_gpu_deterministic_ops=true", "--xla_cpu_multi_thread_eigen=false")
    if compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache.absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if cluster:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            cluster.coordinator,
            cluster.num_processes,
            cluster.process_id,
            shutdown_timeout_seconds=60,  # how long others wait for one that failed
        )
    try:
        jax.devices()
    except RuntimeError as error:
        raise InputError(f"JAX cannot use the devices of this machine: {error}") from error


def _add_xla_flags(*flags: str) -> None:
    """Add to XLA_FLAGS what the user has not set there."""
    given = os.environ.get("XLA_FLAGS", "")
    added = [flag for flag in flags if flag.split("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()


def data_mesh() -> Mesh:
    """All devices of all processes along one axis, `data`."""
    return Mesh(np.array(jax.devices()), ("data",))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch spread over the devices, each row whole."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())
