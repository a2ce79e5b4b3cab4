"""All documents that hold some texts: by filters of token ids first, then by their decoded text.

Where a text occurs, some token covers each of its bytes: one that lies inside of the text, or
begins before it, or ends after it. Of a text's bytes the one is chosen whose tokens are rarest; a
document without any of them does not hold the text. Where one of them is, up to eight bytes on both
sides of it are compared with the text's, which leaves next to nothing but hits, and these are
decoded. No document is missed, whatever surrounds the text, and whether or not a tokenizer would
write it so today.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.hashing import mixed
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints, consecutive
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.tokenizers import Tokenizer

_SEAM = b"\xff"  # in no UTF-8
_CONSIDERED = 64
"""bytes of a text of which the best is chosen"""
_MARGIN = 16
"""bytes at both ends of a text that are not considered: too many tokens cover them; of a short
text only a third"""
_SIZES = (8, 4, 2, 0)
"""bytes on a side of a token that are compared"""
_MASKS = {size: np.uint64(2 ** (8 * size) - 1) for size in _SIZES}
_EIGHT, _FACTOR = np.uint64(8), np.uint64(0x9E3779B97F4A7C15)
_SAMPLE, _SAMPLED = 2**18, 256
"""tokens by which is judged what is rare, and documents that they are from"""
_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 8  # tasks

Words = NDArray[np.uint64]
Ids = NDArray[np.unsignedinteger]
Decode = Callable[[Any], str]
Task = tuple[str, int, int]
"""(source, first document, stop)."""


class Vocabulary:
    """The bytes of each token, and the tokens that begin, end or hold some bytes.

    Args:
        pieces: of each id.

    >>> found = Vocabulary([b"he", b"ello", b"", b" hell"])
    >>> sorted(found.around(b"hell", range(4)))
    [(0, 0), (1, 1), (3, -1)]
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._ids: dict[bytes, list[int]] = defaultdict(list)
        for number, piece in enumerate(pieces):
            if piece:
                self._ids[piece].append(number)
        self._sorted = sorted(self._ids)
        self._reversed = sorted(piece[::-1] for piece in self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        self._starts = [0, *accumulate(len(piece) + 1 for piece in self._sorted)]
        self._joined = _SEAM.join(self._sorted)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary | None:
        """That of a tokenizer; None if it decodes to more than its tokens one after the other."""
        pieces = [*tokenizer.piece_bytes()]
        for silent in (tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id):
            if silent is not None:
                pieces[silent] = b""
        whole = [
            k for k, piece in enumerate(pieces) if "\ufffd" not in piece.decode(errors="replace")
        ]
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
        return cls(pieces)

    def around(self, text: bytes, bytes_: range) -> Iterator[tuple[int, int]]:
        """(token, byte of the text where it begins) of tokens that cover one of some bytes of it.

        And of some that cover only others.
        """
        for piece, start in self._before(text, bytes_.start):
            yield from ((number, start) for number in self._ids[piece])
        for start in range(max(bytes_.start - self._longest, 0), bytes_.stop):
            for piece in self._following(text, start):
                yield from ((number, start) for number in self._ids[piece])

    def _following(self, text: bytes, start: int) -> Iterator[bytes]:
        """Tokens with which a text may go on at a byte: in it, or beyond its end."""
        rest = text[start : start + self._longest]
        for size in range(1, len(rest) + 1):
            part = rest[:size]
            at = bisect_left(self._sorted, part)
            if at == len(self._sorted) or not self._sorted[at].startswith(part):
                return
            if self._sorted[at] == part:
                yield part
        if start + len(rest) == len(text):
            yield from (each for each in _beginning(self._sorted, rest) if len(each) > len(rest))

    def _before(self, text: bytes, least: int) -> Iterator[tuple[bytes, int]]:
        """Tokens that begin before a text: they end in it after a byte, or hold all of it."""
        for size in range(least + 1, min(self._longest, len(text) - 1) + 1):
            for turned in _beginning(self._reversed, text[:size][::-1]):
                if len(turned) > size:
                    yield turned[::-1], size - len(turned)
        at = self._joined.find(text)
        while at >= 0:
            number = bisect_left(self._starts, at + 1) - 1
            if at > self._starts[number]:
                yield self._sorted[number], self._starts[number] - at
            at = self._joined.find(text, at + 1)


def _beginning(ordered: Sequence[bytes], part: bytes) -> Iterator[bytes]:
    """Those of sorted bytes that begin with a part."""
    for at in range(bisect_left(ordered, part), len(ordered)):
        if not ordered[at].startswith(part):
            return
        yield ordered[at]


class _Group(NamedTuple):
    """Places of tokens in texts of which so many bytes before and after are compared."""

    before: int
    after: int
    keys: Words
    """sorted: of a token and these bytes"""
    owners: Ints
    """the text of each key"""

    @classmethod
    def of(cls, before: int, after: int, places: Sequence[tuple[int, int, int, int]]) -> _Group:
        """Those of (token, bytes before as a number, bytes after, text)."""
        tokens, befores, afters, texts = np.array(places, np.uint64).T
        keys = _keys(tokens, befores, afters)
        order = np.argsort(keys, kind="stable")
        return cls(before, after, keys[order], texts[order].astype(np.int64))

    def matches(self, tokens: Words, before: Words, after: Words) -> tuple[Ints, Ints]:
        """(which of some tokens, text) that agree."""
        keys = _keys(tokens, before & _MASKS[self.before], after & _MASKS[self.after])
        first = np.searchsorted(self.keys, keys)
        counts = np.searchsorted(self.keys, keys, side="right") - first
        return np.arange(len(keys)).repeat(counts), self.owners[consecutive(first, counts)]


def _keys(tokens: Words, before: Words, after: Words) -> Words:
    return mixed(mixed(before) * _FACTOR + mixed(after) + tokens)


def _word(data: bytes) -> int:
    """Bytes as a number, the first one lowest."""
    return int.from_bytes(data[:8], "little")


class Anchors:
    """The places in documents where some texts may be.

    Args:
        vocabulary: the tokenizer's.
        texts: in UTF-8, none empty.
        counts: (ids,) how often each token occurs in a sample; makes it fast, not right.
    """

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[bytes], counts: Ints) -> None:
        pieces = [*vocabulary.pieces, b""]  # the last one stands for ids that are in no vocabulary
        self._heads = np.array([_word(piece) for piece in pieces], np.uint64)
        self._tails = np.array([_word(piece[::-1]) for piece in pieces], np.uint64)
        self._sizes = np.array([min(len(piece), 8) for piece in pieces], np.int64)
        self._flags = np.zeros(len(pieces), bool)
        places = defaultdict[tuple[int, int], list[tuple[int, int, int, int]]](list)
        for number, text in enumerate(texts):
            for token, start, end in _rarest(vocabulary, text, counts):
                before, after = text[max(start - 8, 0) : max(start, 0)][::-1], text[end : end + 8]
                sizes = [next(s for s in _SIZES if s <= len(each)) for each in (before, after)]
                words = _word(before[: sizes[0]]), _word(after[: sizes[1]])
                places[sizes[0], sizes[1]].append((token, *words, number))
                self._flags[token] = True
        self._groups = [_Group.of(*sizes, some) for sizes, some in places.items()]

    def passing(self, ids: Ids) -> tuple[Ints, Ints]:
        """(place, text) where a text may be in documents that lie end to end."""
        at = np.flatnonzero(self._flags.take(ids, mode="clip"))
        tokens = ids[at].astype(np.uint64)
        after, before = self._beside(ids, at, 1), self._beside(ids, at, -1)
        found = [(at[:0], at[:0]), *(g.matches(tokens, before, after) for g in self._groups)]
        rows, texts = (np.concatenate(each) for each in zip(*found, strict=True))
        return at[rows], texts

    def _beside(self, ids: Ids, at: Ints, way: int) -> Words:
        """The eight bytes after places (`way` 1) or before them (-1); zeros beyond all tokens."""
        words = self._heads if way > 0 else self._tails
        found, known = np.zeros(len(at), np.uint64), np.zeros(len(at), np.int64)
        rows, place = np.arange(len(at)), at
        while len(rows):
            place = place + way
            inside = (place >= 0) & (place < len(ids))
            rows, place = rows[inside], place[inside]
            token, filled = ids[place], known[rows]
            found[rows] |= words.take(token, mode="clip") << (_EIGHT * filled.astype(np.uint64))
            filled += self._sizes.take(token, mode="clip")
            known[rows] = filled
            rows, place = rows[filled < 8], place[filled < 8]
        return found


def _rarest(vocabulary: Vocabulary, text: bytes, counts: Ints) -> list[tuple[int, int, int]]:
    """(token, start, end) of tokens that cover the byte of a text whose tokens are rarest."""
    margin = min(len(text) // 3, _MARGIN)
    considered = range(margin, min(len(text) - margin, margin + _CONSIDERED))
    around = list(vocabulary.around(text, considered))
    tokens, starts = np.array(around, np.int64).reshape(-1, 2).T
    ends = starts + np.array([len(vocabulary.pieces[token]) for token in tokens.tolist()], np.int64)
    cost = np.zeros(len(text) + 1)
    weights = counts[tokens] + 0.01  # what the sample lacks is not free
    np.add.at(cost, np.maximum(starts, 0), weights)
    np.add.at(cost, np.minimum(ends, len(text)), -weights)
    byte = considered.start + int(np.argmin(np.cumsum(cost)[considered.start : considered.stop]))
    covers = (starts <= byte) & (byte < ends)
    found = (tokens[covers], starts[covers], ends[covers])
    return list(zip(*(each.tolist() for each in found), strict=True))


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
        counts = np.asarray(documents.lengths[first:stop], np.int64)
        ids, ends, found = _ids(documents, np.arange(first, stop), counts), np.cumsum(counts), []
        for which, likely in self._candidates(ids, ends):
            text = self.decode(ids[ends[which] - counts[which] : ends[which]])
            if texts := [number for number in likely if self.texts[number] in text]:
                found.append((first + which, texts))
        return found

    def _candidates(self, ids: Ids, ends: Ints) -> Iterator[tuple[int, Sequence[int]]]:
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


def _ids(documents: Documents, numbers: Ints, counts: Ints) -> Ids:
    """The first `counts` tokens of documents, end to end."""
    data = documents.tokens(numbers, np.zeros_like(numbers), counts).views.join()
    return np.frombuffer(data, documents.dtype.newbyteorder("<"))


def _sample(sources: Mapping[str, Documents], size: int) -> Ints:
    """(size,) how often each token occurs in the beginnings of some documents."""
    counts, each = np.zeros(size, np.int64), max(_SAMPLED // max(len(sources), 1), 1)
    for documents in sources.values():
        last = len(documents) - 1
        numbers = np.unique(np.linspace(0, last, min(each, last + 1), dtype=int))
        lengths = np.minimum(documents.lengths[numbers], _SAMPLE // _SAMPLED).astype(np.int64)
        ids = _ids(documents, numbers, lengths)
        counts += np.bincount(ids[ids < size], minlength=size)
    return counts


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
