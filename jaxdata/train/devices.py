"""The devices of a run, in one process or many, and the shardings of its arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxdata.errors import InputError


@dataclass(frozen=True)
class Cluster:
    """One process of several: the address of process 0, their number, and this one's number."""

    coordinator: str
    num_processes: int
    process_id: int


def prepare(
    *,
    deterministic: bool = True,
    cluster: Cluster | None = None,
    compilation_cache: Path | None = None,
) -> None:
    """Set up JAX for a run; call it before anything uses a device."""
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
            shutdown_timeout_seconds=60,  # how long others wait for a failed process
        )
    try:
        jax.devices()
    except RuntimeError as error:
        raise InputError(f"JAX cannot use the devices of this machine: {error}") from error


def _add_xla_flags(*flags: str) -> None:
    """Add flags to XLA_FLAGS unless the user has set them."""
    given = os.environ.get("XLA_FLAGS", "")
    added = [flag for flag in flags if flag.split("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()


def data_mesh() -> Mesh:
    """All devices of all processes along one axis, `data`."""
    return Mesh(jax.devices(), ("data",), axis_types=(AxisType.Auto,))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch divided among the devices; each row stays whole."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())
