"""Where every random order comes from: named seeds, and permutations that need little memory.

A seed is never another seed plus something: neighbouring seeds would then share their epochs.
It is the hash of the root seed and of the names of what it is for.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDS = 6
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_MIXER = np.uint64(0xD6E8FEB86659FD93)  # odd; Bailey and Evensen's search for xorshift-multiply
_TOP, _ONE, _LAST = np.uint64(32), np.uint64(1), np.uint64(48)
_MAX_SIZE = 2**62
_FINALIZER = [
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
]
_FINAL = np.uint64(31)


def derive(seed: int, *names: str | int) -> int:
    """Hash a root seed and the names of its use into a 64-bit seed.

    >>> derive(0, "rows", 1) == derive(np.int64(0), "rows", np.uint8(1))
    True
    >>> derive(0, "rows", 1) == derive(1, "rows", 0)
    False
    """
    digest = hashlib.blake2b(digest_size=8, person=b"jaxdata.seed")
    for part in (seed, *names):
        own = part.item() if isinstance(part, np.generic) else part
        text = f"{type(own).__name__}:{own}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little")


class Permutation:
    """A keyed permutation of `[0, size)`: O(1) an index, vectorised.

    A Feistel network over the smallest power of two that holds `size`, its two halves as
    unequal as the number of bits demands, so that cycle walking (Black and Rogaway, 2002:
    apply it again until the value is inside) takes fewer than two steps on average. What a round
    makes of a half is looked up where at least as many indices are asked for as there are halves.

    Args:
        size: number of elements, at most 2**62.
        key: a 64-bit seed, as :func:`derive` makes them.

    >>> order = Permutation(5, key=7)
    >>> sorted(order([0, 1, 2, 3, 4]).tolist())
    [0, 1, 2, 3, 4]
    >>> order.inverse(order([3])).tolist()
    [3]
    """

    def __init__(self, size: int, key: int) -> None:
        if not 0 <= size <= _MAX_SIZE:
            raise ValueError(f"a permutation has 0 to 2**62 elements, not {size}")
        self.size, self._key = size, key
        bits = max(1, (size - 1).bit_length())
        self._low_bits = np.uint64(bits - bits // 2)
        self._masks = (np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << (bits // 2)) - 1))
        self._keys = [np.uint64(derive(key, "round", number)) for number in range(_ROUNDS)]
        self._tables: dict[int, NDArray[np.uint64]] = {}

    def __reduce__(self) -> "tuple[type[Permutation], tuple[int, int]]":
        return Permutation, (self.size, self._key)

    def __len__(self) -> int:
        return self.size

    def __call__(self, index: ArrayLike) -> NDArray[np.int64]:
        """Positions after the permutation, int64, of the shape of `index`."""
        return self._walk(index, range(_ROUNDS))

    def inverse(self, index: ArrayLike) -> NDArray[np.int64]:
        """The indices that the permutation takes to `index`, int64."""
        return self._walk(index, range(_ROUNDS - 1, -1, -1))

    def _walk(self, index: ArrayLike, rounds: range) -> NDArray[np.int64]:
        given = np.asarray(index, dtype=np.int64)
        if given.size and not (given.min() >= 0 and given.max() < self.size):
            raise IndexError(f"an index lies outside [0, {self.size})")
        value = self._shuffle(given.ravel().view(np.uint64), rounds)
        outside = np.flatnonzero(value >= self.size)
        while outside.size:
            walked = self._shuffle(value[outside], rounds)
            value[outside] = walked
            outside = outside[walked >= self.size]
        return value.view(np.int64).reshape(given.shape)

    def _shuffle(self, value: NDArray[np.uint64], rounds: range) -> NDArray[np.uint64]:
        halves = [value & self._masks[0], value >> self._low_bits]
        for number in rounds:
            side = number % 2
            halves[side] ^= self._hashed(number, halves[1 - side])
        return halves[0] | (halves[1] << self._low_bits)

    def _hashed(self, number: int, half: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """What the other half is changed by in a round."""
        different = self._masks[1 - number % 2] + _ONE
        if half.size < different:
            return self._hash(number, half)
        if number not in self._tables:
            self._tables[number] = self._hash(number, np.arange(different, dtype=np.uint64))
        # Nothing is outside, and mode "raise" is slower.
        return self._tables[number].take(half.view(np.int64), mode="clip")

    def _hash(self, number: int, half: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of the well mixed top half of a 64-bit hash, as many bits as the half to change has."""
        mixed = half * MULTIPLIER + self._keys[number]
        mixed ^= mixed >> _TOP
        mixed *= _MIXER
        mixed >>= _TOP
        mixed &= self._masks[number % 2]
        return mixed


def shuffled_groups(counts: NDArray[np.int64], keys: Sequence[int]) -> NDArray[np.int64]:
    """The things of some groups, group after group, each in an order keyed by its own key.

    Unlike a :class:`Permutation`, it is made as a whole: a counting sort by 16 bits of a hash. What
    becomes of a group does not depend on the others.

    >>> shuffled_groups(np.array([4, 3]), [7, 8]).tolist()
    [0, 1, 3, 2, 5, 4, 6]
    >>> shuffled_groups(np.array([3]), [8]).tolist()
    [1, 0, 2]
    """
    edges = np.append(0, np.cumsum(counts))
    within = np.arange(edges[-1]) - np.repeat(edges[:-1], counts)
    hashed = (within.view(np.uint64) + _ONE) * MULTIPLIER
    hashed ^= np.repeat(np.array(keys, np.uint64), counts)
    hashed *= _MIXER
    hashed ^= hashed >> _TOP
    hashed *= MULTIPLIER
    digits = (hashed >> _LAST).astype(np.uint16)
    ordered = [np.argsort(digits[a:b], kind="stable") for a, b in pairwise(edges.tolist())]
    found: NDArray[np.int64] = np.concatenate([edges[:0], *ordered])
    found += np.repeat(edges[:-1], counts)
    return found


def keyed_uniform(key: int, *numbers: NDArray[np.integer]) -> NDArray[np.float64]:
    """Draw from [0, 1) for each tuple of numbers of some arrays, always the same for a key.

    The numbers are hashed one after the other by the finalizer of SplitMix64 (Steele, Lea and
    Flood, 2014).

    >>> keyed_uniform(7, np.array([0, 1]), np.array([0, 0])).round(3).tolist()
    [0.722, 0.71]
    """
    mixed: NDArray[np.uint64] = np.full_like(numbers[0], key, np.uint64)
    for each in numbers:
        mixed = finalized((mixed ^ each.astype(np.uint64)) + MULTIPLIER)
    return as_uniform(mixed)


def finalized(hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers: the finalizer of SplitMix64."""
    for shift, factor in _FINALIZER:
        hashed = (hashed ^ (hashed >> shift)) * factor
    return hashed ^ (hashed >> _FINAL)


def as_uniform(hashed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The top 53 bits as numbers in [0, 1)."""
    return np.asarray((hashed >> np.uint64(11)) * 2.0**-53, np.float64)
