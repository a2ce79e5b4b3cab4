"""The devices of a run, in one process or many, and a digest of a step's rows on any of them."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxdata.base.errors import InputError


def prepare(
    *,
    deterministic: bool = True,
    cluster: tuple[str, int, int] | None = None,
    compilation_cache: Path | None = None,
) -> None:
    """Set up JAX for a run; call it before anything uses a device.

    A `cluster` is the address of process 0, the number of processes, and that of this one.
    """
    if deterministic:
        given = os.environ.get("XLA_FLAGS", "")
        flags = ("--xla_gpu_deterministic_ops=true", "--xla_cpu_multi_thread_eigen=false")
        added = [flag for flag in flags if flag.split("=")[0] not in given]  # the user's stay
        os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
    if compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache.absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if cluster:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # The timeout is how long others wait for a failed process.
        jax.distributed.initialize(*cluster, shutdown_timeout_seconds=60)
    try:
        jax.devices()
    except RuntimeError as error:
        raise InputError(f"JAX cannot use the devices of this machine: {error}") from error


def shardings() -> tuple[NamedSharding, NamedSharding]:
    """Rows of a batch divided among all devices, each row whole; and what every device holds."""
    mesh = Mesh(jax.devices(), ("data",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


FIELDS = ("inputs", "targets", "loss_mask", "segment_ids", "positions")


def row_digests(batch: Mapping[str, jax.Array | np.ndarray]) -> np.ndarray:
    """SHA-256 over the five arrays of each row in this process; `uint8 (rows, 32)`."""
    arrays = [_own_rows(batch[name]) for name in FIELDS]
    each = (b"".join(row.tobytes() for row in rows) for rows in zip(*arrays, strict=True))
    digests = [hashlib.sha256(row).digest() for row in each]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def batch_digest(batch: Mapping[str, jax.Array | np.ndarray]) -> str:
    """The digest of a whole batch, 32 hex digits, from the digests of its rows in order."""
    return _combine(row_digests(batch))


def gather_digests(parts: Sequence[np.ndarray]) -> list[str]:
    """The digests of whole batches, from the `row_digests` of this process's rows of each.

    A collective operation: every process has to call it, for the same batches.
    """
    if jax.process_count() == 1 or not parts:
        return [_combine(rows) for rows in parts]
    of_a_size = [np.stack(list(group)) for _, group in groupby(parts, key=len)]
    gathered = [np.asarray(multihost_utils.process_allgather(stacked)) for stacked in of_a_size]
    # each (processes, batches, rows, 32)
    return [_combine(rows) for each in gathered for rows in each.swapaxes(0, 1)]


def _combine(digests: np.ndarray) -> str:
    return hashlib.sha256(digests.tobytes()).hexdigest()[:32]


def _own_rows(array: jax.Array | np.ndarray) -> np.ndarray:
    """The rows on devices of this process, in order."""
    if isinstance(array, np.ndarray):
        return array
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])
