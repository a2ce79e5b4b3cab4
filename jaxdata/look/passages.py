"""Where texts are in documents: all documents that hold them, and all their places there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.look.anchors import Anchors, Vocabulary
from jaxdata.storage.small_files import read_small

Decode = Callable[[Any], str]


def read_texts(given: str) -> list[str]:
    """The texts of a file, which may be a URL.

    Each line is a JSON string, an object with a `text`, or the text itself; none is empty.

    Raises:
        InputError: there is no such file, no text in it, or it is not UTF-8; or a line is an object
            without a text.
    """
    try:
        lines = read_small(given).decode().splitlines()
    except OSError as error:
        raise InputError(f"{given} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{given}: expected texts in UTF-8, {error}") from error
    found = [_text_of(given, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InputError(f"{given} holds no text: expected one a line")
    return checked(found)


def _text_of(given: str, number: int, line: str) -> str:
    if line.lstrip()[0] not in '"{':
        return line
    try:
        value = json.loads(line)
    except ValueError:
        return line
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise InputError(
            f"{given} line {number}: expected a JSON string, or an object with a string as its "
            '"text"'
        )
    return text


def checked(texts: Sequence[str]) -> list[str]:
    """Different texts that can be looked for; raises InputError where one cannot."""
    for text in texts:
        try:
            found = bool(text.encode())
        except UnicodeEncodeError:
            raise InputError(f"{text[:100]!r} is no Unicode text: no document holds it") from None
        if not found:
            raise InputError("the text to look for is empty: every document holds it")
    return list(dict.fromkeys(texts))


@dataclass(frozen=True)
class Scanner:
    """Finds the documents of a dataset that hold texts: exactly those whose decoded text has them.

    Args:
        decode: decodes token ids.
        texts: what is looked for.
        anchors: tokens that documents with them have; None where a tokenizer's text is more than
            the texts of its tokens: then every document is decoded.
    """

    decode: Decode
    texts: Sequence[str]
    anchors: Anchors | None

    @classmethod
    def of(
        cls, dataset: Dataset, sources: Mapping[str, Documents], texts: Sequence[str]
    ) -> Scanner:
        """That of a dataset and the sources in which it is going to look."""
        # Parts of characters decode to U+FFFD, whatever bytes they are.
        partial = any("\ufffd" in text for text in texts)
        if partial or (vocabulary := Vocabulary.of(dataset.tokenizer)) is None:
            return cls(dataset.decode, texts, None)
        counts = _sample(sources, len(vocabulary.pieces))
        anchors = Anchors(vocabulary, [text.encode() for text in texts], counts)
        return cls(dataset.decode, texts, anchors)

    def holding(self, documents: Documents, first: int, stop: int) -> list[tuple[int, list[int]]]:
        """(document, numbers of the texts in it) of those of `[first, stop)` that hold any."""
        numbers = np.arange(first, stop)
        counts = np.asarray(documents.lengths[first:stop], np.int64)
        data = documents.tokens(numbers, np.zeros_like(numbers), counts).views.join()
        ids = np.frombuffer(data, documents.dtype.newbyteorder("<"))
        ends = np.cumsum(counts)
        found = []
        for which, likely in self._candidates(ids, ends):
            text = self.decode(ids[ends[which] - counts[which] : ends[which]])
            texts = [number for number in likely if self.texts[number] in text]
            if texts:
                found.append((first + which, texts))
        return found

    def _candidates(
        self, ids: NDArray[np.unsignedinteger], ends: Ints
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Documents that may hold texts, and which."""
        if self.anchors is None:
            yield from ((which, range(len(self.texts))) for which in range(len(ends)))
            return
        at, text = self.anchors.passing(ids)
        owner = np.searchsorted(ends, at, side="right")
        owner, text = np.unique(np.column_stack([owner, text]), axis=0).T
        which, first = np.unique(owner, return_index=True)
        for number, some in zip(which.tolist(), np.split(text, first[1:]), strict=False):
            yield number, some.tolist()


_SAMPLE = 2**18
"""tokens by which is judged what is rare"""
_SAMPLED = 256
"""documents that they are from"""


def _sample(sources: Mapping[str, Documents], size: int) -> Ints:
    """(size,) how often each token occurs in the beginnings of some documents."""
    counts, each = np.zeros(size, np.int64), max(_SAMPLED // max(len(sources), 1), 1)
    for documents in sources.values():
        numbers = np.unique(
            np.linspace(0, len(documents) - 1, min(each, len(documents)), dtype=int)
        )
        lengths = np.minimum(documents.lengths[numbers], _SAMPLE // _SAMPLED).astype(np.int64)
        data = documents.tokens(numbers, np.zeros_like(numbers), lengths).views.join()
        ids = np.frombuffer(data, documents.dtype.newbyteorder("<"))
        counts += np.bincount(ids[ids < size], minlength=size)
    return counts


_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 8  # tasks

Task = tuple[str, int, int]
"""(source, first document, stop)."""


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
    answers = _answers(Scanner.of(dataset, sources, texts), dataset, sources, tasks)
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


def locate(
    decode: Decode, token_bytes: NDArray[Any], tokens: NDArray[Any], text: str
) -> list[tuple[int, int]]:
    """The tokens `[first, stop)` of every occurrence of a text in a document, overlapping ones too.

    Args:
        decode: decodes token ids.
        token_bytes: (ids,) bytes of each id, as `Dataset.token_bytes`.
        tokens: of the document.
        text: what is looked for.
    """
    whole = decode(tokens)
    places = [*_places(whole, text)]
    if not places:
        return []
    sizes = token_bytes.take(tokens, mode="clip").astype(np.int64)
    data = whole.encode("utf-8", "surrogatepass")
    extra = int(sizes.sum()) - len(data)
    if extra not in (0, 1):  # a space that SentencePiece puts before a text
        return [_located(decode, tokens, text, place) for place in places]
    ends = np.cumsum(sizes) - extra
    begins = np.array([*_places(data, text.encode())], np.int64)
    first = np.searchsorted(ends, begins, side="right")
    stop = np.searchsorted(ends, begins + len(text.encode()), side="left") + 1
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def _places(whole: Any, part: Any) -> Iterator[int]:
    at = whole.find(part)
    while at >= 0:
        yield at
        at = whole.find(part, at + 1)


def _located(decode: Decode, tokens: Any, text: str, place: int) -> tuple[int, int]:
    """The tokens of an occurrence, by decoding prefixes and what follows them."""
    low, high = 0, len(tokens)
    while low < high:  # the shortest prefix that contains it
        middle = (low + high) // 2
        there = decode(tokens[:middle]).find(text, place) == place
        low, high = (low, middle) if there else (middle + 1, high)
    stop, first, last = low, 0, max(low - 1, 0)
    while first < last:  # the last token from which it is complete
        middle = (first + last + 1) // 2
        first, last = (middle, last) if text in decode(tokens[middle:stop]) else (first, middle - 1)
    return first, stop


class Trained(NamedTuple):
    """How often, and when, a run trained something."""

    times: int
    first_step: int | None
    last_step: int | None

    @classmethod
    def of(cls, steps: Sequence[int]) -> Trained:
        """What some steps make, one for each time."""
        return cls(len(steps), min(steps, default=None), max(steps, default=None))


def steps_of(pieces: Sequence[Mapping[str, Any]], match: tuple[int, int]) -> list[int]:
    """The step of each time that a run trained an occurrence of a text: its last token.

    That is a target with loss once an epoch, wherever windows cut the document; the first token of
    a document, which is no target, counts where it is an input.
    """
    last = match[1] - 1
    steps = []
    for piece in pieces:
        first, stop = piece["tokens"]
        new = first + 1 + piece["without_loss"] if last else first
        begun = piece.get("trained", piece["step"] is not None)
        if begun and new <= last < stop:
            steps.append(piece["step"])
    return steps
