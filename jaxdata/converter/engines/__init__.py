"""Engines do the units of a job: in processes of this machine, or on a Ray cluster.

The dataset is the same to the byte.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal, Protocol, get_args

from jaxdata.base.errors import InputError, WorkerDied, log
from jaxdata.base.processes import Pool, Progress, available_cores

EngineName = Literal["local", "ray"]
ATTEMPTS = 4
"""Workers that may die over one unit before it is taken for the cause."""


class Work(Protocol):
    """A job as engines know it: a conversion, or another that is cut into units."""

    @property
    def url(self) -> str:
        """The dataset."""

    @property
    def folder(self) -> str:
        """Where it leaves its receipts."""

    @property
    def worker(self) -> str:
        """A module with `worker_of(job)`, which does units in its process."""


class Part(Protocol):
    """A unit as engines know it: what one worker does at a time, and commits by a receipt."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes, for the progress bar."""

    @property
    def where(self) -> str:
        """What is read, for messages."""

    def without_data(self) -> Any:
        """What is worth keeping when a worker has the unit."""


@dataclass
class Attempt:
    """A unit given to a worker: the first, or the next where one died."""

    unit: Any
    """a `Part`"""
    number: int = 1
    done: int = 0  # bytes of it that were reported as done

    def advance(self, share: float) -> int:
        """Bytes that are new with this share of the unit done."""
        done = int(share * self.unit.size)
        new = max(0, done - self.done)  # less is done after a retry
        self.done += new
        return new


class Places(Protocol):
    """Where units are done, each by one worker: a `Pool` of processes is one, a cluster another."""

    @property
    def workers(self) -> int:
        """Units to do at a time, at this moment."""

    def __len__(self) -> int:
        """Units under way."""

    def start(self, task: Any, key: Any) -> None:
        """Give a unit to a worker; the key is its `Attempt`. Raises WorkerDied."""

    def wait(self) -> Iterable[tuple[Any, Any]]:
        """Wait until something happens: pairs of an attempt and a `Progress`, WorkerDied, answer.

        What a worker raises is raised here.
        """

    def close(self) -> None:
        """End what is under way; finished units stay."""


class Engine:
    """Does the units of a job, as many at a time as there are places.

    `progress` is called with bytes of input (on disk) as they are done.
    """

    def __init__(self, places: Places, progress: Callable[[int], None]) -> None:
        self._places, self._progress = places, progress

    def run(
        self, units: Iterable[Part], take: Callable[[Any, Any], bool] = lambda *_: True
    ) -> None:
        """Do all units, taken as workers become free; then each has its receipt.

        `take` is given each unit that is done and the answer of its worker. Where it is false, no
        further unit is started; those that are under way are done.

        Raises:
            InputError: a file cannot be read.
            WorkerDied: workers died over one unit repeatedly; the receipts so far stay valid.
        """
        self._take, self._stopped = take, False
        try:
            for unit in units:  # the next is read while workers are busy
                self._wait_until_fewer_than(self._places.workers)
                if self._stopped:
                    break
                self._start(Attempt(unit))
            self._wait_until_fewer_than(1)
        finally:
            self._places.close()

    def _start(self, attempt: Attempt) -> None:
        try:
            self._places.start(attempt.unit, attempt)
        except WorkerDied as error:
            self._again(attempt, error)

    def _wait_until_fewer_than(self, count: int) -> None:
        while len(self._places) >= count:
            for attempt, message in self._places.wait():
                if isinstance(message, WorkerDied):
                    self._again(attempt, message)
                    continue
                under_way = isinstance(message, Progress)
                self._progress(attempt.advance(message.share if under_way else 1.0))
                self._stopped |= not (under_way or self._take(attempt.unit, message))

    def _again(self, attempt: Attempt, error: WorkerDied) -> None:
        """Retry a unit whose worker died."""
        unit = attempt.unit
        if attempt.number == ATTEMPTS:
            raise WorkerDied(
                f"{error}; {ATTEMPTS} workers have died on the unit {unit.name} "
                f"(from {unit.where}). If memory is short, use fewer --workers. Finished work is "
                "kept: the same command resumes"
            ) from error
        log.warning("%s; the unit %s (from %s) is retried", error, unit.name, unit.where)
        self._start(replace(attempt, number=attempt.number + 1))


MakeEngine = Callable[[Work, Callable[[int], None]], Engine]
"""Makes an engine of a job and a callback for bytes of input done."""


def choose_engine(name: str, workers: int | None) -> MakeEngine:
    """Return what makes the engine of this name; `workers` None for one a core."""
    if name not in get_args(EngineName):
        raise InputError(f"engine={name!r}; expected one of {get_args(EngineName)}")
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}; expected 1 or more")

    def make(job: Work, progress: Callable[[int], None]) -> Engine:
        if name == "ray":
            from jaxdata.converter.engines.ray import RayCluster

            return Engine(RayCluster(job, workers), progress)
        pool = Pool(partial(worker_of, job), workers=workers or available_cores())
        return Engine(pool, progress)

    return make


def worker_of(job: Work) -> Callable[[Any], Any]:
    """What does units of a job, in this process."""
    worker: Callable[[Any], Any] = import_module(job.worker).worker_of(job)
    return worker


class ProgressSum:
    """Adds up what units have done, in bytes or tokens, and tells the caller."""

    def __init__(
        self, total: int, progress: Callable[[int, int], None] | None, done: int = 0
    ) -> None:
        self._done, self._total, self._progress = done, total, progress
        self.advance(0)

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._total)
