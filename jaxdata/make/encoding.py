"""Tokenising documents in worker processes, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from jaxdata import tokenizers
from jaxdata.convert.parameters import tokenizer_entry
from jaxdata.convert.tasks import Dropped, Encoded, Task, make_task
from jaxdata.errors import WorkerDied
from jaxdata.format.manifest import TokenizerEntry
from jaxdata.processes import Worker
from jaxdata.tokenizers import Tokenizer

__all__ = ["Encoder", "TaskSpec"]

Answer = Sequence[tuple[Encoded, ...] | Dropped]


@dataclass(frozen=True)
class TaskSpec:
    """A task and its tokenizer, in a form that can be sent to a process."""

    settings: Any
    tokenizer: TokenizerEntry
    files: dict[str, bytes]

    @classmethod
    def of(cls, settings: Any, tokenizer: Tokenizer) -> TaskSpec:
        """What makes the same task with the same tokenizer elsewhere."""
        return cls(settings, tokenizer_entry(tokenizer), tokenizer.files())

    def make(self) -> Task:
        """The task, with a tokenizer of its own."""
        entry = self.tokenizer
        return make_task(
            self.settings,
            tokenizers.restore(
                entry.kind,
                self.files,
                eod_id=entry.eod_id,
                bos_id=entry.bos_id,
                pad_id=entry.pad_id,
                name=entry.name,
            ),
        )


class Encoder:
    """Worker processes that tokenise; with 0 of them it is done here.

    Args:
        spec: the task.
        workers: how many processes.
    """

    def __init__(self, spec: TaskSpec, workers: int) -> None:
        self._workers = [Worker("jaxdata.make.encoding:serve", spec) for _ in range(workers)]
        self._task = None if workers else spec.make()

    def encode(self, chunks: Iterator[Sequence[Any]]) -> Iterator[Answer]:
        """Tokenise chunks of documents; each worker has one while the next is being read."""
        if self._task is not None:
            yield from map(self._task.encode, chunks)
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
        for worker in self._workers:
            with suppress(WorkerDied):
                worker.close()


def serve(connection: Connection, spec: TaskSpec) -> None:
    """A worker process: tokenises the chunks that come, until the parent is gone."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process has one core
    task = spec.make()
    while True:
        connection.send(task.encode(connection.recv()))
