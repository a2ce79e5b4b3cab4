"""All documents that hold some texts: looked for in the bytes of their tokens, end to end.

A document with a hit is decoded, and counts if its text has it: none is missed, and whether a
tokenizer would write a text so today does not matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints, consecutive
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.tokenizers import Tokenizer

_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 8  # tasks

Decode = Callable[[Any], str]
Task = tuple[str, int, int]
"""(source, first document, stop)."""


def pieces_of(tokenizer: Tokenizer) -> list[bytes] | None:
    """The bytes of each token; None if it decodes to more than its tokens one after the other."""
    pieces = [*tokenizer.piece_bytes()]
    for silent in (tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id):
        if silent is not None:
            pieces[silent] = b""
    whole = [k for k, piece in enumerate(pieces) if "\ufffd" not in piece.decode(errors="replace")]
    order = np.random.default_rng(0).permutation([k for k in whole if pieces[k]]).tolist()
    expected = b"".join(pieces[number] for number in order).decode()
    if tokenizer.decode(order) not in (expected, expected.removeprefix(" ")):
        return None
    # An id without bytes of its own may write some between letters, as an unknown piece does.
    letters = [number for number in order if pieces[number].isalpha()][:1]
    edge = tokenizer.decode(letters)
    for number in [k for k, piece in enumerate(pieces) if not piece]:
        try:
            text = tokenizer.decode([*letters, number, *letters])
        except InputError:  # there is no such token
            continue
        if not (text.startswith(edge) and text[len(edge) :].endswith(edge)):
            return None
        pieces[number] = text[len(edge) : len(text) - len(edge)].encode()
    return pieces


class Joined:
    """The bytes of tokens, to be laid end to end; those that no tokenizer has are empty."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._data = np.frombuffer(b"".join(pieces), np.uint8)
        self._sizes = np.array([*map(len, pieces), 0], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def text(self, ids: NDArray[Any], counts: Ints) -> tuple[bytes, Ints]:
        """That of documents of so many tokens, and where the bytes of each document end."""
        known = np.minimum(ids, len(self._sizes) - 1)
        sizes = self._sizes[known]
        ends = np.concatenate([[0], np.cumsum(sizes)])[np.cumsum(counts)]
        return self._data[consecutive(self._starts[known], sizes)].tobytes(), ends


@dataclass(frozen=True)
class Scanner:
    """Finds the documents of a dataset that hold texts: exactly those whose decoded text has them.

    Args:
        decode: decodes token ids.
        texts: what is looked for.
        joined: the bytes of tokens; None where a tokenizer's text is more than the texts of its
            tokens: then every document is decoded.
    """

    decode: Decode
    texts: Sequence[str]
    joined: Joined | None

    @classmethod
    def of(cls, dataset: Dataset, texts: Sequence[str]) -> Scanner:
        """That of a dataset."""
        # Parts of characters decode to U+FFFD, whatever bytes they are.
        partial = any("\ufffd" in text for text in texts)
        pieces = None if partial else pieces_of(dataset.tokenizer)
        return cls(dataset.decode, texts, None if pieces is None else Joined(pieces))

    def holding(self, documents: Documents, first: int, stop: int) -> list[tuple[int, list[int]]]:
        """(document, numbers of the texts in it) of those of `[first, stop)` that hold any."""
        counts = np.asarray(documents.lengths[first:stop], np.int64)
        numbers = np.arange(first, stop)
        data = documents.tokens(numbers, np.zeros_like(numbers), counts).views.join()
        ids, ends = np.frombuffer(data, documents.dtype.newbyteorder("<")), np.cumsum(counts)
        found = []
        for which, likely in sorted(self._candidates(ids, counts).items()):
            text = self.decode(ids[ends[which] - counts[which] : ends[which]])
            if texts := [number for number in likely if self.texts[number] in text]:
                found.append((first + which, texts))
        return found

    def _candidates(self, ids: NDArray[Any], counts: Ints) -> Mapping[int, Sequence[int]]:
        """Documents that may hold texts, and which."""
        if self.joined is None:
            return dict.fromkeys(range(len(counts)), range(len(self.texts)))
        data, stops = self.joined.text(ids, counts)
        ends, found = stops.tolist(), defaultdict[int, list[int]](list)
        for number, text in enumerate(self.texts):
            sought = text.encode()
            at = data.find(sought)
            while at >= 0:
                which = bisect_right(ends, at)
                found[which].append(number)
                at = data.find(sought, ends[which])
        return found


class Holder(NamedTuple):
    """A document that holds texts."""

    source: str
    document: int
    texts: list[int]
    """their numbers"""


def find_texts(
    dataset: Dataset, sources: Mapping[str, Documents], texts: Sequence[str], progress: Advance
) -> list[Holder]:
    """All documents that contain one of some texts when decoded, source by source.

    One pass over the tokens, on all cores.
    """
    tasks = [task for name, documents in sources.items() for task in _tasks(name, documents)]
    total = sum(len(documents) for documents in sources.values())
    found: list[Holder] = []
    seen = 0
    answers = _answers(Scanner.of(dataset, texts), dataset, sources, tasks)
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
    scanner: Scanner, dataset: Dataset, sources: Mapping[str, Documents], tasks: list[Task]
) -> Iterator[list[Holder]]:
    if len(tasks) < _WORTH_WORKERS or available_cores() == 1:
        yield from (_holders(scanner, sources, task) for task in tasks)
        return
    # A tokenizer is no part of the message: each process opens its own.
    given = dataset, dict(sources), replace(scanner, decode=str)
    with Pool(f"{__name__}:serve", *given, workers=available_cores()) as pool:
        yield from pool.map(tasks)


def _holders(scanner: Scanner, sources: Mapping[str, Documents], task: Task) -> list[Holder]:
    name, first, stop = task
    return [Holder(name, *each) for each in scanner.holding(sources[name], first, stop)]


def serve(
    connection: Connection, dataset: Dataset, sources: Mapping[str, Documents], scanner: Scanner
) -> None:
    """A worker process: searches the ranges it is sent, until the parent is gone."""
    own = replace(scanner, decode=dataset.decode)
    answer_tasks(connection, lambda task, _: _holders(own, sources, task))
