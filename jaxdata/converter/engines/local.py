"""Units in worker processes of this machine."""

from __future__ import annotations

from collections.abc import Callable

from jaxdata.converter.engines.base import Attempt, Engine, Work
from jaxdata.errors import WorkerDied
from jaxdata.processes import Pool, Progress, available_cores


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
