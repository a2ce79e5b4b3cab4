"""Giving units to worker processes of this machine, as few at a time as there are workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from jaxdata.convert.job import Job, Progress
from jaxdata.convert.parts import Unit
from jaxdata.convert.receipts import Receipt
from jaxdata.errors import WorkerDied
from jaxdata.processes import Worker

__all__ = ["Stopped", "run_units"]


class Stopped(Exception):
    """The first bad record of a conversion that is to stop there.

    Attributes:
        unit: where it is.
        receipt: of the unit as far as it was read; its last quarantined record is the bad one.
    """

    def __init__(self, unit: Unit, receipt: Receipt) -> None:
        super().__init__(receipt.quarantined[-1].reason)
        self.unit, self.receipt = unit, receipt


def run_units(
    job: Job, units: Iterable[Unit], workers: int, progress: Callable[[int], None]
) -> None:
    """Have all units converted; when it returns, each has its receipt.

    Args:
        job: what the units have in common.
        units: the work; taken one by one as workers get free.
        workers: how many processes, at most.
        progress: called with bytes of input (on disk) as they are done.

    Raises:
        Stopped: at the first bad record, where the job says so.
        InputError: a file cannot be read.
        WorkerDied: a worker was killed; the receipts so far stay valid.
    """
    pool = _Pool(job, progress)
    try:
        for unit in units:
            pool.wait_until_fewer_busy_than(workers)
            if pool.stopped:
                break
            pool.start(unit)
        pool.wait_until_fewer_busy_than(1)
    except WorkerDied as error:
        raise WorkerDied(
            f"{error}. What was finished is kept: the same command goes on from there"
        ) from error
    finally:
        pool.close()
    if pool.stopped:
        # Units are given out in order: every one before the first that stopped has been done.
        raise min(pool.stopped, key=lambda stopped: stopped.unit.place)


class _Pool:
    def __init__(self, job: Job, progress: Callable[[int], None]) -> None:
        self._job = job
        self._progress = progress
        self._idle: list[Worker] = []
        self._busy: dict[Connection, _Task] = {}
        self.stopped: list[Stopped] = []

    def start(self, unit: Unit) -> None:
        worker = self._idle.pop() if self._idle else Worker("jaxdata.convert.work:serve", self._job)
        self._busy[worker.connection] = _Task(worker, unit.without_data())
        worker.send(unit)

    def wait_until_fewer_busy_than(self, count: int) -> None:
        while len(self._busy) >= count:
            for connection in wait(list(self._busy)):
                self._take(self._busy[connection])  # type: ignore[index]

    def _take(self, task: _Task) -> None:
        message = task.worker.receive()
        done = task.unit.size
        if isinstance(message, Progress):
            done = int(message.share * task.unit.size)
        else:
            del self._busy[task.worker.connection]
            self._idle.append(task.worker)
            if message.stopped:
                self.stopped.append(Stopped(task.unit, message.stopped))
        self._progress(done - task.done)
        task.done = done

    def close(self) -> None:
        for worker in [*self._idle, *(task.worker for task in self._busy.values())]:
            with suppress(WorkerDied):
                worker.close()


@dataclass
class _Task:
    worker: Worker
    unit: Unit
    done: int = 0
