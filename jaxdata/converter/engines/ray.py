"""Units as tasks of a Ray cluster, whose nodes share the inputs and the output."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError, MissingExtra, WorkerDied
from jaxdata.base.processes import Report
from jaxdata.converter.engines.base import Attempt, Engine, Part, Work
from jaxdata.converter.job import Finished
from jaxdata.dataset.lease import LEASE_FILE
from jaxdata.storage import open_store

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
    "FASTOKENS_BPE_THREADS": "1",
}
"""A task has one core; a user's function may use jax, but not the accelerators."""
_ANSWER_SECONDS = 10.0


class RayEngine(Engine):
    """See `Engine`; joins a running cluster, or starts one on this machine.

    There are a few more tasks than cores, so that no core waits for its next unit. There are no
    more than that, because a unit of a non-splittable stream carries its text.

    `workers` are units at a time; None for one a core of the cluster, as cores come and go.
    `address` is "host:port" of the cluster; None for $RAY_ADDRESS, or this machine.
    """

    def __init__(
        self, job: Work, progress: Callable[[int], None], workers: int | None, address: str | None
    ) -> None:
        super().__init__(job, progress)
        self._ray = _import_ray()
        self._workers = workers
        self._joined = _join(self._ray, address)
        if "://" not in job.url:
            here: Any = job  # every job is a dataclass
            job = replace(here, url=str(Path(job.url).absolute()))
        self._shared_job = self._ray.put(job)
        self._units: dict[str, Any] = {}
        self._busy: dict[Any, Attempt] = {}
        options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": _ENVIRONMENT}}
        self._convert = self._ray.remote(**options)(_convert)

    def places(self) -> int:
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        return self._workers or cores + 2 + cores // 8

    def busy(self) -> int:
        return len(self._busy)

    def start(self, attempt: Attempt) -> None:
        name = attempt.unit.name
        if name not in self._units:
            self._units[name] = self._ray.put(attempt.unit)
            attempt.unit = attempt.unit.without_data()
        # Ray does not resolve a reference in a list: most workers have the job already.
        self._busy[self._convert.remote([self._shared_job], self._units[name])] = attempt

    def wait(self) -> None:
        done, _ = self._ray.wait(list(self._busy), num_returns=1)
        for result in done:
            self._take(self._busy.pop(result), result)

    def _take(self, attempt: Attempt, result: Any) -> None:
        try:
            message = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            self.again(attempt, WorkerDied(str(error).splitlines()[0]))
        else:
            del self._units[attempt.unit.name]
            self.finish(attempt, message)

    def close(self) -> None:
        """End what is under way, not by force: Ray 2 aborts a driver whose task just ended."""
        if self._joined:
            self._ray.shutdown()  # ends the tasks of this driver, too
            return
        for result in self._busy:
            self._ray.cancel(result)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


def _join(ray: Any, address: str | None) -> bool:
    """Connect to a cluster; returns False if this process was connected already."""
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    _check_answers(address)
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return True


def _check_answers(address: str | None) -> None:
    """Raise InputError if nothing listens there: Ray itself would retry for minutes."""
    host, separator, port = (address or "").removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():  # None, or a word of Ray such as "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head` "
            "and pass the address that it prints as --ray-address"
        ) from error


def _convert(job: list[Any], unit: Part) -> Finished:
    """The body of a task."""
    known, worker = _worker(job[0])
    _check_shared(known, unit)
    return worker(unit, lambda _share: None)


@lru_cache(1)
def _worker(job: Any) -> tuple[Work, Callable[[Part, Report], Finished]]:
    """A job, and what does its units in this process, shared by all tasks of the job."""
    known = _import_ray().get(job)
    return known, import_module(known.worker).worker_of(known)


def _check_shared(job: Work, unit: Part) -> None:
    output = f"{job.folder}/{LEASE_FILE}"
    seen = open_store(job.url).read(output) is not None
    if seen and unit.unseen is None:
        return
    absent = unit.unseen if seen else f"{job.url}/{output}"
    raise InputError(
        f"the node {socket.gethostname()} of the cluster does not see {absent}: all nodes must see "
        "the inputs and the output under the same paths; use a shared file system, or gs:// "
        "or s3:// for the output"
    )
