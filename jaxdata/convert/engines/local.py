"""Units in worker processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection, wait

from jaxdata.convert.engines.base import Engine, Task
from jaxdata.convert.job import Job, Progress
from jaxdata.errors import WorkerDied
from jaxdata.processes import Worker, available_cores, close_all

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """See `Engine`; a process a unit, each used again."""

    def __init__(self, job: Job, progress: Callable[[int], None], workers: int | None) -> None:
        super().__init__(job, progress)
        self._workers = workers or available_cores()
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, Task]] = {}

    def places(self) -> int:
        return self._workers

    def busy(self) -> int:
        return len(self._busy)

    def start(self, task: Task) -> None:
        try:
            worker = self._idle.pop() if self._idle else self._new_worker()
            worker.send(task.unit)
        except WorkerDied as error:
            self.again(task, error)
        else:
            self._busy[worker.connection] = worker, task

    def _new_worker(self) -> Worker:
        return Worker("jaxdata.convert.work:serve", self.job)

    def wait(self) -> None:
        for connection in wait(list(self._busy)):
            self._take(*self._busy[connection])  # type: ignore[index]

    def _take(self, worker: Worker, task: Task) -> None:
        try:
            message = worker.receive()
        except WorkerDied as error:
            del self._busy[worker.connection]
            worker.close()
            self.again(task, error)
            return
        if isinstance(message, Progress):
            self.progress(task.advance(message.share))
        else:
            del self._busy[worker.connection]
            self._idle.append(worker)
            self.finish(task, message)

    def close(self) -> None:
        close_all([*self._idle, *(worker for worker, _ in self._busy.values())])
