"""Documents that contain a text: all are decoded, on all cores if there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.documents.dataset import Dataset
from jaxdata.processes import Pool, answer_tasks, available_cores
from jaxdata.progress import Advance

_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 4  # tasks

Task = tuple[str, int, int]
"""(source, first document, stop)."""


def find_text(
    dataset: Dataset, sources: Mapping[str, Documents], text: str, progress: Advance
) -> list[tuple[str, int]]:
    """(source, document) of all documents that contain a text when decoded, source by source."""
    tasks = [task for name, documents in sources.items() for task in _tasks(name, documents)]
    total = sum(len(documents) for documents in sources.values())
    found: list[tuple[str, int]] = []
    seen = 0
    answers = _answers(dataset, sources, text, tasks)
    for (_, first, stop), answer in zip(tasks, answers, strict=True):
        found += answer
        seen += stop - first
        progress(seen, total)
    return found


def _tasks(name: str, documents: Documents) -> Iterator[Task]:
    """Ranges of documents of about `_TOKENS_A_TASK` tokens each."""
    ends = np.cumsum(documents.lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.unique(np.searchsorted(ends, np.arange(0, total, _TOKENS_A_TASK)))
    for first, stop in zip(cuts, [*cuts[1:], len(ends)], strict=True):
        yield name, int(first), int(stop)


def _answers(
    dataset: Dataset, sources: Mapping[str, Documents], text: str, tasks: list[Task]
) -> Iterator[list[tuple[str, int]]]:
    if len(tasks) < _WORTH_WORKERS:
        yield from (_holding(dataset.decode, sources, text, task) for task in tasks)
        return
    given = dataset, dict(sources), text
    with Pool(f"{__name__}:serve", *given, workers=available_cores()) as pool:
        yield from pool.map(tasks)


def _holding(
    decode: Callable[[Any], str], sources: Mapping[str, Documents], text: str, task: Task
) -> list[tuple[str, int]]:
    name, first, stop = task
    documents = sources[name]
    return [(name, n) for n in range(first, stop) if text in decode(documents[n]["tokens"])]


def serve(
    connection: Connection, dataset: Dataset, sources: Mapping[str, Documents], text: str
) -> None:
    """A worker process: searches the ranges it is sent, until the parent is gone."""
    answer_tasks(connection, lambda task, _: _holding(dataset.decode, sources, text, task))


def locate_text(decode: Callable[[Any], str], tokens: Any, text: str) -> tuple[int, int]:
    """The tokens `[first, stop)` of the first occurrence of a text in a document."""
    low, high = 0, len(tokens)
    while low < high:  # the shortest prefix that contains it
        middle = (low + high) // 2
        low, high = (low, middle) if text in decode(tokens[:middle]) else (middle + 1, high)
    stop, first, last = low, 0, max(low - 1, 0)
    while first < last:  # the last token from which it is complete
        middle = (first + last + 1) // 2
        first, last = (middle, last) if text in decode(tokens[middle:stop]) else (first, middle - 1)
    return first, stop
