"""Engines do the units of a job: in processes of this machine, or on a Ray cluster.

The dataset is the same to the byte.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from jaxdata.base.errors import WorkerDied, log
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


WorkerOf = Callable[[Any], Callable[[Any], Any]]
"""Makes what does units of a job in a process; a function of a module."""


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

    def again(self, error: WorkerDied) -> "Attempt":
        """The next, as the worker died; raises WorkerDied where too many have."""
        unit = self.unit
        if self.number == ATTEMPTS:
            raise WorkerDied(
                f"{error}; {ATTEMPTS} workers have died on the unit {unit.name} "
                f"(from {unit.where}). If memory is short, use fewer --workers. Finished work is "
                "kept: the same command resumes"
            ) from error
        log.warning("%s; the unit %s (from %s) is retried", error, unit.name, unit.where)
        return replace(self, number=self.number + 1)


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


Engine = Callable[[Any, WorkerOf], Places]
"""Opens the places where the units of a job, a `Work`, are done."""


def choose_engine(name: EngineName, workers: int | None) -> Engine:
    """Return the engine of this name; `workers` None for one a core."""
    if name == "ray":
        from jaxdata.converter.engines.ray import RayCluster

        return partial(RayCluster, workers=workers)
    return lambda job, worker_of: Pool(
        partial(worker_of, job), workers=workers or available_cores()
    )


def do_units(
    places: Places,
    units: Iterable[Part],
    advance: Callable[[int], None],
    take: Callable[[Any, Any], bool] = lambda *_: True,
) -> None:
    """Do all units, taken as places become free; then each has its receipt, and these are closed.

    Args:
        places: where they are done.
        units: those of the job of these places.
        advance: called with bytes of input (on disk) as they are done.
        take: is given each unit that is done and the answer of its worker. Where it is false, no
            further unit is started; those that are under way are done.

    Raises:
        InputError: a file cannot be read.
        WorkerDied: workers died over one unit repeatedly; the receipts so far stay valid.
    """
    stopped = False

    def start(attempt: Attempt) -> None:
        try:
            places.start(attempt.unit, attempt)
        except WorkerDied as error:
            start(attempt.again(error))

    def wait_until_fewer_than(count: int) -> None:
        nonlocal stopped
        while len(places) >= count:
            for attempt, message in places.wait():
                if isinstance(message, WorkerDied):
                    start(attempt.again(message))
                    continue
                under_way = isinstance(message, Progress)
                advance(attempt.advance(message.share if under_way else 1.0))
                stopped |= not (under_way or take(attempt.unit, message))

    try:
        for unit in units:  # the next is read while workers are busy
            wait_until_fewer_than(places.workers)
            if stopped:
                break
            start(Attempt(unit))
        wait_until_fewer_than(1)
    finally:
        places.close()


OnProgress = Callable[[int, int], None] | None
"""Called with the bytes of input done, and their total."""


class ProgressSum:
    """Adds up what units have done, in bytes or tokens, and tells the caller."""

    def __init__(self, total: int, progress: OnProgress, done: int = 0) -> None:
        self._done, self._total, self._progress = done, total, progress
        self.advance(0)

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._total)
