"""Words and their ids: each different word is encoded once, and found again by its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import consecutive

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Keys = NDArray[np.uint64]
Numbers = NDArray[np.int32]

WORD = 16  # bytes: longer words are found in a dict, which takes ten times as long
_AT_ONCE = 2**16  # words
_BYTES = 2**24  # of long words, and of ids
_TRIES = 32  # slots that a word may lie in

# The bytes of a word in its first and in its second 8, as masks by its size.
_ONES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_LOW = np.concatenate([_ONES, np.repeat(_ONES[-1], 8)])
_HIGH = np.concatenate([np.repeat(_ONES[0], 8), _ONES])
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


class WordTable:
    """What a function makes of words, kept for as many words as there is room for.

    A full table begins anew: what was in it says only how long the next words take, never what
    their ids are.

    Args:
        encode: the ids of each of some words; a function of the word alone. No word holds a NUL.
        words: how many are kept; at least 65,536.
    """

    def __init__(
        self, encode: Callable[[list[bytes]], Sequence[Sequence[int]]], words: int = 2**18
    ) -> None:
        self._encode = encode
        self._room = max(words, _AT_ONCE)
        self._shift = np.uint64(64 - self._room.bit_length())
        self._keys = np.empty((2, self._room), np.uint64)  # of a word, by its number
        self._first = np.zeros(self._room + 1, np.int64)  # of its ids
        self._clear()

    def _clear(self) -> None:
        self._count = self._bytes = 0
        self._slots = np.full(1 << self._room.bit_length(), -1, np.int32)  # words by their hash
        self._others: dict[bytes, int] = {}  # words of more than 16 bytes
        self._ids = np.empty(2**16, np.int32)

    def encode(self, text: bytes, starts: Ints) -> tuple[Ids, Ints]:
        """Ids of all words of a text, end to end, and how many each word has.

        Args:
            text: words end to end.
            starts: where each word starts, int64 of shape (words,), ascending from 0.
        """
        nothing = np.empty(0, np.int32), np.empty(0, np.int64)
        found = [nothing, *(self._some(text, part) for part in _parts(starts, len(text)))]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([n for _, n in found])

    def _some(self, text: bytes, edges: Ints) -> tuple[Ids, Ints]:
        if self._count + len(edges) > self._room or self._bytes + 4 * len(self._ids) > _BYTES:
            self._clear()
        sizes = np.diff(edges)
        numbers = self._find(_keys(text, edges[:-1], sizes))
        numbers[sizes > WORD] = -1
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            spans = map(slice, edges[missing].tolist(), edges[missing + 1].tolist())
            numbers[missing] = self._look_up(list(map(text.__getitem__, spans)))
        first = self._first.take(numbers)
        counts = self._first.take(numbers + 1) - first
        return self._ids.take(consecutive(first, counts)), counts

    def _find(self, keys: Keys) -> Numbers:
        """Numbers of words, -1 where they are not in the table."""
        at = self._hash(keys)
        numbers: Numbers = self._slots.take(at)
        other = np.flatnonzero(self._differ(numbers, keys))
        for _ in range(_TRIES):
            if not len(other):
                break
            at[other] = (at[other] + 1) & (len(self._slots) - 1)
            numbers[other] = self._slots[at[other]]
            other = other[self._differ(numbers[other], keys[:, other])]
        numbers[other] = -1
        return numbers

    def _differ(self, numbers: Numbers, keys: Keys) -> NDArray[np.bool_]:
        low, high = self._keys
        same: NDArray[np.bool_] = low.take(numbers) == keys[0]
        same &= high.take(numbers) == keys[1]
        return (numbers >= 0) & ~same

    def _hash(self, keys: Keys) -> Ints:
        mixed: Keys = (keys[0] * _FACTORS[0]) ^ (keys[1] * _FACTORS[1])
        mixed ^= mixed >> np.uint64(29)
        mixed *= _FACTORS[0]
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _look_up(self, words: list[bytes]) -> list[int]:
        """Numbers of words that the arrays lack."""
        numbers = {word: self._others.get(word, -1) for word in words}
        new = [word for word, number in numbers.items() if number < 0]
        if new:
            numbers.update(zip(new, self._add(new), strict=True))
        return list(map(numbers.__getitem__, words))

    def _add(self, new: list[bytes]) -> range:
        ids = self._encode(new)
        first = self._count
        ends = self._first[first] + np.cumsum([len(one) for one in ids])
        self._ids = _with_room(self._ids, int(ends[-1]))
        self._ids[self._first[first] : ends[-1]] = [i for one in ids for i in one]
        self._count += len(new)
        self._first[first + 1 : self._count + 1] = ends
        self._keep(new, first)
        return range(first, self._count)

    def _keep(self, new: list[bytes], first: int) -> None:
        """Let words be found again that have the numbers from `first` on."""
        short = [at for at, word in enumerate(new) if len(word) <= WORD]
        padded = b"".join(new[at].ljust(WORD, b"\0") for at in short)
        keys = np.frombuffer(padded, "<u8").reshape(-1, 2).T
        left = self._insert(np.array(short, np.int32) + np.int32(first), keys)
        long = [first + at for at, word in enumerate(new) if len(word) > WORD]
        for number in (*left.tolist(), *long):
            self._others[new[number - first]] = number
        self._bytes += sum(len(new[number - first]) for number in long)

    def _insert(self, numbers: Numbers, keys: Keys) -> Numbers:
        """Put different words that the table lacks into it, each at the first free slot.

        Returns:
            Those that found none near.
        """
        self._keys[:, numbers] = keys
        at = self._hash(keys)
        for _ in range(_TRIES):
            free = self._slots[at] < 0
            self._slots[at[free]] = numbers[free]  # of several for one slot, one gets it
            left = np.flatnonzero(self._slots[at] != numbers)
            numbers, at = numbers[left], (at[left] + 1) & (len(self._slots) - 1)
        return numbers


def _keys(text: bytes, starts: Ints, sizes: Ints) -> Keys:
    """The first 16 bytes of each word, as two numbers; 0 after its end."""
    eights = np.ndarray(len(text) + 8, "<u8", text + bytes(WORD), 0, (1,))  # one at each byte
    return np.stack(
        [
            eights.take(starts) & _LOW.take(sizes, mode="clip"),
            eights.take(starts + 8) & _HIGH.take(sizes, mode="clip"),
        ]
    )


def _parts(starts: Ints, end: int) -> list[Ints]:
    """The edges of words, some at a time."""
    edges = np.append(starts, end)
    return [edges[at : at + _AT_ONCE + 1] for at in range(0, len(starts), _AT_ONCE)]


def _with_room(array: Ids, count: int) -> Ids:
    if count <= len(array):
        return array
    larger = np.empty(2 * count, np.int32)
    larger[: len(array)] = array
    return larger
