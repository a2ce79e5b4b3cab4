"""Documents that hold a text: all are decoded, by all cores where there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from jaxdata.processes import available_cores, map_tasks
from jaxdata.progress import Advance
from jaxdata.rows.documents import Documents
from jaxdata.rows.sources import Sources

__all__ = ["find_text", "locate_text"]

_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 4  # tasks

Task = tuple[str, int, int]
"""(source, first document, stop)."""


def find_text(
    dataset: Sources,
    sources: Mapping[str, Documents],
    text: str,
    progress: Advance,
) -> list[tuple[str, int]]:
    """(source, document) of all documents that hold a text, source by source.

    Args:
        dataset: with the tokenizer.
        sources: by name.
        text: as it stands in the documents once they are decoded.
        progress: called with (documents seen, all documents).
    """
    tasks = [task for name, documents in sources.items() for task in _tasks(name, documents)]
    total = sum(len(documents) for documents in sources.values())
    found: dict[int, list[tuple[str, int]]] = {}
    seen = 0
    for number, answer in _answers(dataset, sources, text, tasks):
        found[number] = answer
        seen += tasks[number][2] - tasks[number][1]
        progress(seen, total)
    return [each for number in sorted(found) for each in found[number]]


def _tasks(name: str, documents: Documents) -> Iterator[Task]:
    """Ranges of documents of about so many tokens."""
    ends = np.cumsum(documents.lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.unique(np.searchsorted(ends, np.arange(0, total, _TOKENS_A_TASK)))
    for first, stop in zip(cuts, [*cuts[1:], len(ends)], strict=True):
        yield name, int(first), int(stop)


def _answers(
    dataset: Sources, sources: Mapping[str, Documents], text: str, tasks: list[Task]
) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    if len(tasks) >= _WORTH_WORKERS:
        arguments = [dataset, dict(sources), text]
        yield from map_tasks(f"{__name__}:serve", arguments, tasks, available_cores())
        return
    for number, task in enumerate(tasks):
        yield number, _holding(dataset.decode, sources, text, task)


def _holding(
    decode: Callable[[Any], str], sources: Mapping[str, Documents], text: str, task: Task
) -> list[tuple[str, int]]:
    name, first, stop = task
    documents = sources[name]
    return [
        (name, document)
        for document in range(first, stop)
        if text in decode(documents[document]["tokens"])
    ]


def serve(
    connection: Connection, dataset: Sources, sources: Mapping[str, Documents], text: str
) -> None:
    """A worker process: searches the ranges it is sent, until the parent is gone."""
    while True:
        connection.send(_holding(dataset.decode, sources, text, connection.recv()))


def locate_text(decode: Callable[[Any], str], tokens: Any, text: str) -> tuple[int, int]:
    """The tokens `[first, stop)` of a document in which a text that it holds stands first."""
    low, high = 0, len(tokens)
    while low < high:  # the shortest beginning that holds it
        middle = (low + high) // 2
        low, high = (low, middle) if text in decode(tokens[:middle]) else (middle + 1, high)
    stop, first, last = low, 0, max(low - 1, 0)
    while first < last:  # the latest first token from which it is whole
        middle = (first + last + 1) // 2
        first, last = (middle, last) if text in decode(tokens[middle:stop]) else (first, middle - 1)
    return first, stop
