"""Units as tasks of a Ray cluster, whose nodes share the inputs and the output."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxdata.convert.engines.base import Engine, Task
from jaxdata.convert.job import Finished, Job, parameters_name
from jaxdata.convert.parts import Unit
from jaxdata.convert.work import UnitConverter
from jaxdata.errors import InputError, MissingExtra, WorkerDied
from jaxdata.format.storage import open_store

__all__ = ["RayEngine"]

_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"}
"""A task has one core; a function of the user's may use jax, but the accelerators are others'."""
_ANSWER_SECONDS = 10.0


class RayEngine(Engine):
    """See `Engine`; joins a cluster that runs, or starts one on this machine.

    There are a few more tasks than cores, so that no core waits for its next unit, and no more: a
    unit of a stream that cannot be split brings its text along.

    Args:
        job: what the units have in common.
        progress: called with bytes of input done, a unit at a time.
        workers: units at a time; None for as many as the cluster has cores, as they come and go.
        address: "host:port" of the cluster; None for that of $RAY_ADDRESS, or of this machine.
    """

    def __init__(
        self,
        job: Job,
        progress: Callable[[int], None],
        workers: int | None,
        address: str | None,
    ) -> None:
        super().__init__(job, progress)
        self._ray = _import_ray()
        self._workers = workers
        self._joined = _join(self._ray, address)
        self._shared_job = self._ray.put(_from_anywhere(job))
        self._units: dict[str, Any] = {}
        self._busy: dict[Any, Task] = {}
        options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": _ENVIRONMENT}}
        self._convert = self._ray.remote(**options)(_convert)

    def places(self) -> int:
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        return self._workers or cores + 2 + cores // 8

    def busy(self) -> int:
        return len(self._busy)

    def start(self, task: Task) -> None:
        name = task.unit.name
        if name not in self._units:
            self._units[name] = self._ray.put(task.unit)
            task.unit = task.unit.without_data()
        # A reference in a list is not resolved: most workers have the job already.
        self._busy[self._convert.remote([self._shared_job], self._units[name])] = task

    def wait(self) -> None:
        done, _ = self._ray.wait(list(self._busy), num_returns=1)
        for result in done:
            self._take(self._busy.pop(result), result)

    def _take(self, task: Task, result: Any) -> None:
        try:
            message = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            self.again(task, WorkerDied(str(error).splitlines()[0]))
        else:
            del self._units[task.unit.name]
            self.finish(task, message)

    def close(self) -> None:
        for result in self._busy:
            self._ray.cancel(result, force=True)
        if self._joined:
            self._ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


def _join(ray: Any, address: str | None) -> bool:
    """Connect to a cluster unless this process is in one; return whether we did."""
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    _check_answers(address)
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return True


def _check_answers(address: str | None) -> None:
    """Raise InputError where nobody listens: Ray itself would try for minutes."""
    host, separator, port = (address or "").removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():  # None, or one of Ray's own words, such as "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, "
            "and give the address that it prints as --ray-address"
        ) from error


def _from_anywhere(job: Job) -> Job:
    """The job with an output that does not depend on the current folder."""
    return job if "://" in job.url else replace(job, url=str(Path(job.url).absolute()))


def _convert(job: list[Any], unit: Unit) -> Finished:
    """What a task does."""
    return _converter(job[0]).convert(unit, lambda _share: None)


@lru_cache(1)
def _converter(job: Any) -> UnitConverter:
    """The converter of this process, which has many tasks of one job."""
    fetched: Job = _import_ray().get(job)
    _check_shared(fetched)
    return UnitConverter(fetched)


def _check_shared(job: Job) -> None:
    begun = parameters_name(job.folder)
    seen = open_store(job.url).read(begun) is not None
    if seen and job.files[0].path.exists():
        return
    absent = job.files[0].path if seen else f"{job.url}/{begun}"
    raise InputError(
        f"the node {socket.gethostname()} of the cluster does not see {absent}: all nodes must see "
        "the inputs and the output under the same paths; use a shared file system, or gs:// "
        "or s3:// for the output"
    )
