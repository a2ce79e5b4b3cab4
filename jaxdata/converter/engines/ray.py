"""Units as tasks of a Ray cluster, whose nodes share the inputs and the output."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError, WorkerDied, extra_module
from jaxdata.base.processes import WORKER_ENVIRONMENT
from jaxdata.converter.engines import Attempt, Part, Work, WorkerOf
from jaxdata.dataset.lease import LEASE_FILE
from jaxdata.storage import open_store

_ANSWER_SECONDS = 10.0


class RayCluster:
    """See `Places`; joins the cluster of $RAY_ADDRESS or this machine, or starts one here.

    There are a few more tasks than cores, so that no core waits for its next unit. There are no
    more than that, because a unit of a non-splittable stream carries its text.

    `workers` are units at a time; None for one a core of the cluster, as cores come and go.
    """

    def __init__(self, job: Work, worker_of: WorkerOf, *, workers: int | None) -> None:
        self._ray = ray = extra_module("ray", "ray")
        self._workers = workers
        self._joined = _join(ray)
        if "://" not in job.url:
            here: Any = job  # every job is a dataclass
            job = replace(here, url=str(Path(job.url).absolute()))
        self._shared_job = ray.put((job, worker_of))
        self._units: dict[str, Any] = {}
        self._busy: dict[Any, Attempt] = {}
        options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}}
        self._do: Any = self._ray.remote(**options)(_do)

    @property
    def workers(self) -> int:
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        return self._workers or cores + 2 + cores // 8

    def __len__(self) -> int:
        return len(self._busy)

    def start(self, unit: Part, attempt: Attempt) -> None:
        if unit.name not in self._units:
            self._units[unit.name] = self._ray.put(unit)
            attempt.unit = unit.without_data()
        # Ray does not resolve a reference in a list: most workers have the job already.
        self._busy[self._do.remote([self._shared_job], self._units[unit.name])] = attempt

    def wait(self) -> Iterator[tuple[Attempt, Any]]:
        done, _ = self._ray.wait(list(self._busy), num_returns=1)
        for result in done:
            attempt = self._busy.pop(result)
            try:
                answer = self._ray.get(result)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError as error:
                yield attempt, WorkerDied(str(error).splitlines()[0])
            else:
                del self._units[attempt.unit.name]
                yield attempt, answer

    def close(self) -> None:
        """End what is under way, not by force: Ray 2 aborts a driver whose task just ended."""
        if self._joined:
            self._ray.shutdown()  # ends the tasks of this driver, too
            return
        for result in self._busy:
            self._ray.cancel(result)


def _join(ray: Any) -> bool:
    """Connect to a cluster; returns False if this process was connected already.

    Raises:
        InputError: nothing listens at $RAY_ADDRESS, which Ray itself would try for minutes.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # no word of Ray such as "auto"
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head` "
            "and give the address that it prints as $RAY_ADDRESS"
        ) from error
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    return True


def _do(job: list[Any], unit: Part) -> Any:
    """The body of a task."""
    work = _worker(job[0])
    try:
        return work(unit)
    except InputError as error:
        raise InputError(f"{error} (on the node {socket.gethostname()} of the cluster)") from error


@lru_cache(1)
def _worker(job: Any) -> Callable[[Any], Any]:
    """What does the units of a job in this process, shared by all tasks of the job."""
    import ray

    given: tuple[Work, WorkerOf] = ray.get(job)
    known, worker_of = given
    output = f"{known.folder}/{LEASE_FILE}"
    if open_store(known.url).read(output) is None:
        raise InputError(
            f"the node {socket.gethostname()} of the cluster does not see {known.url}/{output}: "
            "all nodes must see the inputs and the output under the same paths; use a shared file "
            "system, or gs:// or s3:// for the output"
        )
    return worker_of(known)
