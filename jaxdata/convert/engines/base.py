"""What every engine does: a few units at a time, each again where its worker was killed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from jaxdata.convert.job import Finished, Job
from jaxdata.convert.parts import Unit
from jaxdata.convert.receipts import Receipt
from jaxdata.errors import WorkerDied

__all__ = ["ATTEMPTS", "Engine", "Stopped", "Task"]

ATTEMPTS = 4
"""Workers that may be killed over one unit, before it is taken for the cause."""
_log = logging.getLogger("jaxdata")


class Stopped(Exception):
    """The record that a conversion stops at: a bad one, or one that the transform fails on.

    Attributes:
        unit: where it is.
        receipt: of the unit as far as it was read; the record is the last of it.
        failure: what the transform did wrong; None where the last quarantined record is bad.
    """

    def __init__(self, unit: Unit, receipt: Receipt, failure: str | None) -> None:
        super().__init__(failure or receipt.quarantined[-1].reason)
        self.unit, self.receipt, self.failure = unit, receipt, failure


@dataclass
class Task:
    """A unit that a worker has.

    Attributes:
        unit: the unit.
        attempt: 1 for the first worker that has it, and so on.
        done: bytes of it that were reported as done.
    """

    unit: Unit
    attempt: int = 1
    done: int = 0

    def advance(self, share: float) -> int:
        """Return the bytes that are new with this share of the unit done."""
        done = int(share * self.unit.size)
        new = max(0, done - self.done)  # less is done where it was begun again
        self.done += new
        return new


class Engine(ABC):
    """Has units converted, at most `places` at a time.

    Args:
        job: what the units have in common.
        progress: called with bytes of input (on disk) as they are done.
    """

    def __init__(self, job: Job, progress: Callable[[int], None]) -> None:
        self.job = job
        self.progress = progress
        self._stopped: list[Stopped] = []

    def run(self, units: Iterable[Unit]) -> None:
        """Have all units converted; when it returns, each has its receipt.

        Args:
            units: the work; taken one by one as there is room for them.

        Raises:
            Stopped: at the first bad record, where the job says so.
            InputError: a file cannot be read.
            WorkerDied: workers were killed over one unit again and again; the receipts so far
                stay valid.
        """
        try:
            for unit in units:
                self._wait_until_fewer_than(self.places())
                if self._stopped:
                    break
                self.start(Task(unit))
            self._wait_until_fewer_than(1)
        finally:
            self.close()
        if self._stopped:
            # Units are given out in order: every one before the first that stopped has been done.
            raise min(self._stopped, key=lambda stopped: stopped.unit.place)

    def _wait_until_fewer_than(self, count: int) -> None:
        while self.busy() >= count:
            self.wait()

    def finish(self, task: Task, message: Finished) -> None:
        """Take note of a unit that a worker is done with."""
        self.progress(task.advance(1.0))
        if message.stopped:
            self._stopped.append(Stopped(task.unit, message.stopped, message.failure))

    def again(self, task: Task, error: WorkerDied) -> None:
        """Begin a unit whose worker was killed once more."""
        unit = task.unit
        first = self.job.files[unit.parts[0].file].path
        if task.attempt == ATTEMPTS:
            raise WorkerDied(
                f"{error}; it is the worker number {ATTEMPTS} to end over the unit {unit.name} "
                f"(from {first}). If memory is short, give fewer --workers. What was finished is "
                "kept: the same command goes on from there"
            ) from error
        _log.warning("%s; the unit %s (from %s) is begun again", error, unit.name, first)
        self.start(replace(task, attempt=task.attempt + 1))

    @abstractmethod
    def places(self) -> int:
        """Units to have at a time, as things are now."""

    @abstractmethod
    def busy(self) -> int:
        """Units that have been started and not finished."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Give a unit to a worker."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until something happens, and take note of it."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way; what is finished stays."""
