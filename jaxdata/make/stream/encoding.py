"""Tokenising documents in worker processes, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from jaxdata.convert.job import Job
from jaxdata.convert.tasks import Dropped, Encoded
from jaxdata.processes import Worker, close_all

__all__ = ["Encoder"]

Answer = Sequence[Encoded | Dropped]


class Encoder:
    """Worker processes that tokenise; with 0 of them it is done here.

    Args:
        job: what documents become.
        workers: how many processes.
    """

    def __init__(self, job: Job, workers: int) -> None:
        self._workers = [Worker("jaxdata.make.stream.encoding:serve", job) for _ in range(workers)]
        self._here = None if workers else _Encoding(job)

    def encode(self, chunks: Iterator[Sequence[Any]]) -> Iterator[Answer]:
        """Tokenise chunks of documents; each worker has one while the next is being read."""
        if self._here is not None:
            yield from map(self._here.encode, chunks)
            return
        waiting: deque[Worker] = deque()
        for number, chunk in enumerate(chunks):
            worker = self._workers[number % len(self._workers)]
            if len(waiting) == len(self._workers):
                yield waiting.popleft().receive()
            worker.send(chunk)
            waiting.append(worker)
        while waiting:
            yield waiting.popleft().receive()

    def close(self) -> None:
        """End the processes."""
        close_all(self._workers)


class _Encoding:
    def __init__(self, job: Job) -> None:
        self._task = job.task(job.tokenizer(), job.cleaner())
        self._limits = job.parameters.limits

    def encode(self, documents: Sequence[Any]) -> Answer:
        encoded = self._limits.of_tokens(self._task.encode(documents))
        return [one if isinstance(one, Dropped) else one[0] for one in encoded]


def serve(connection: Connection, job: Job) -> None:
    """A worker process: tokenises the chunks that come, until the parent is gone."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process has one core
    encoding = _Encoding(job)
    while True:
        connection.send(encoding.encode(connection.recv()))
