"""What every engine does: a few units of a job at a time, again where their worker died."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jaxdata.base.errors import WorkerDied
from jaxdata.base.processes import Pool, Progress, available_cores
from jaxdata.converter.inputs.units import Unit
from jaxdata.converter.job import Finished
from jaxdata.converter.receipts import Receipt
from jaxdata.tokenizers.encoders import EncoderDiffers

ATTEMPTS = 4
"""Workers that may die over one unit before it is taken for the cause."""
_log = logging.getLogger("jaxdata")


class Work(Protocol):
    """A job as engines know it: a conversion, or another that is cut into units."""

    @property
    def url(self) -> str:
        """The dataset."""
        ...

    @property
    def folder(self) -> str:
        """Where it leaves its receipts."""
        ...

    @property
    def worker(self) -> str:
        """A module with `worker_of(job)`, which does units in its process, and `serve`."""
        ...


class Part(Protocol):
    """A unit as engines know it: what one worker does at a time, and commits by a receipt."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes, for the progress bar."""
        ...

    @property
    def where(self) -> str:
        """What is read, for messages."""
        ...

    @property
    def unseen(self) -> str | None:
        """What it reads that this machine does not see."""
        ...

    def without_data(self) -> Any:
        """What is worth keeping when a worker has the unit."""
        ...


class Stopped(Exception):
    """A conversion stops at a record: a bad one, or one that the transform fails on.

    The receipt is of the unit as far as it was read, the record last; `failure` says how the
    transform failed, None if the last quarantined record is bad.
    """

    def __init__(self, unit: Unit, receipt: Receipt, failure: str | None) -> None:
        super().__init__(failure or receipt.quarantined[-1].reason)
        self.unit, self.receipt, self.failure = unit, receipt, failure


def _changed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"input {names[0]!r}{more} changed since it was converted"


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


class Engine(ABC):
    """Does the units of a job, at most `places` at a time.

    `progress` is called with bytes of input (on disk) as they are done.
    """

    def __init__(self, job: Work, progress: Callable[[int], None]) -> None:
        self.job = job
        self.progress = progress
        self._stopped: list[Stopped] = []
        self._differs: EncoderDiffers | None = None

    def run(self, units: Iterable[Part]) -> None:
        """Do all units, taken as workers become free; then each has its receipt.

        Raises:
            Stopped: at the first bad record, if the job asks for that.
            EncoderDiffers: the encoder of the job gave other ids than its library.
            InputError: a file cannot be read.
            WorkerDied: workers died over one unit repeatedly; the receipts so far stay valid.
        """
        try:
            for unit in units:
                self._wait_until_fewer_than(self.places())
                if self._stopped or self._differs:
                    break
                self.start(Attempt(unit))
            self._wait_until_fewer_than(1)
        finally:
            self.close()
        if self._differs:
            raise self._differs
        if self._stopped:
            # Units are started in order: all before the first that stopped are done.
            raise min(self._stopped, key=lambda stopped: stopped.unit.place)

    def _wait_until_fewer_than(self, count: int) -> None:
        while self.busy() >= count:
            self.wait()

    def finish(self, attempt: Attempt, message: Finished) -> None:
        """Note that a worker is done with a unit."""
        self.progress(attempt.advance(1.0))
        if message.changed:
            _log.warning("%s: converted again (%s)", _changed(message.changed), attempt.unit.name)
        self._differs = self._differs or message.differs
        if message.stopped:
            self._stopped.append(Stopped(attempt.unit, message.stopped, message.failure))

    def again(self, attempt: Attempt, error: WorkerDied) -> None:
        """Retry a unit whose worker died."""
        unit = attempt.unit
        if attempt.number == ATTEMPTS:
            raise WorkerDied(
                f"{error}; {ATTEMPTS} workers have died on the unit {unit.name} "
                f"(from {unit.where}). If memory is short, use fewer --workers. Finished work is "
                "kept: the same command resumes"
            ) from error
        _log.warning("%s; the unit %s (from %s) is retried", error, unit.name, unit.where)
        self.start(replace(attempt, number=attempt.number + 1))

    @abstractmethod
    def places(self) -> int:
        """Units to convert at a time, at this moment."""

    @abstractmethod
    def busy(self) -> int:
        """Units that are started and not finished."""

    @abstractmethod
    def start(self, attempt: Attempt) -> None:
        """Give a unit to a worker."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until something happens, and note it."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way; finished units stay."""


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


class LocalEngine(Engine):
    """See `Engine`; a pool of processes, each with a unit at a time."""

    def __init__(self, job: Work, progress: Callable[[int], None], workers: int | None) -> None:
        super().__init__(job, progress)
        self._pool = Pool(f"{job.worker}:serve", job, workers=workers or available_cores())

    def places(self) -> int:
        return self._pool.workers

    def busy(self) -> int:
        return len(self._pool)

    def start(self, attempt: Attempt) -> None:
        try:
            self._pool.start(attempt.unit, attempt)
        except WorkerDied as error:
            self.again(attempt, error)

    def wait(self) -> None:
        for attempt, message in self._pool.wait():
            if isinstance(message, Progress):
                self.progress(attempt.advance(message.share))
            elif isinstance(message, WorkerDied):
                self.again(attempt, message)
            else:
                self.finish(attempt, message)

    def close(self) -> None:
        self._pool.close()
