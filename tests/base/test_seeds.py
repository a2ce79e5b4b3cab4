import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from jaxdata.base.seeds import Permutation, derive, shuffled_groups


@pytest.mark.parametrize("size", [1, 65_537, 262_145, 2**40 - 1, 2**40, 2**61 + 3])
def test_dense_ranges_keep_distinct(size: int) -> None:
    count = min(size, 200_000)
    index = np.arange((size - count) * 37 // 100, (size - count) * 37 // 100 + count)
    permutation = pickle.loads(pickle.dumps(Permutation(size, derive(1, "large"))))
    order = permutation(index)
    assert order.min() >= 0
    assert order.max() < size
    assert len(np.unique(order)) == len(index)
    assert np.array_equal(permutation.inverse(order), index)


def test_golden_values() -> None:
    assert derive(0, "deal", "train/web") == 12717025599298937298
    assert Permutation(10, 7)(range(10)).tolist() == [5, 0, 2, 8, 7, 3, 9, 1, 4, 6]
    large = [148632783486, 449960320040, 830299766943, 520552042901]
    assert Permutation(10**12, 7)([0, 1, 10**11, 10**12 - 1]).tolist() == large
    groups = shuffled_groups(np.array([4, 6]), [7, 2**64 - 1])
    assert groups.tolist() == [0, 1, 3, 2, 8, 5, 7, 6, 4, 9]


def plainly_derived(seed: int, *names: str | int) -> int:
    """Of each part its kind, a colon and its text, after the number of those bytes."""
    parts = [f"{kind}:{part}".encode() for part in (seed, *names) for kind in [type(part).__name__]]
    whole = b"".join(bytes([len(part), 0, 0, 0, 0, 0, 0, 0]) + part for part in parts)
    found = hashlib.blake2b(whole, digest_size=8, person=b"jaxdata.seed").digest()
    return sum(byte << (8 * place) for place, byte in enumerate(found))


def plainly_permuted(size: int, key: int, index: int) -> int:
    """Six rounds, in each of which one half is changed by a hash of the other; until inside."""
    bits = next(n for n in range(1, 64) if 2**n >= size)
    low_bits, high_bits = bits - bits // 2, bits // 2
    low, high = index % 2**low_bits, index >> low_bits
    for number in range(6):
        changed, other = (high, low) if number % 2 else (low, high)
        mixed = other * 0x9E3779B97F4A7C15 + plainly_derived(key, "round", number)
        mixed %= 2**64
        mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 % 2**64 >> 32
        changed ^= mixed % 2 ** (high_bits if number % 2 else low_bits)
        low, high = (low, changed) if number % 2 else (changed, high)
    found = low + (high << low_bits)
    return found if found < size else plainly_permuted(size, key, found)


@settings(max_examples=40)
@given(st.integers(), st.lists(st.text("aé:1", max_size=9) | st.integers(), max_size=4))
def test_seeds_are_hashes_of_their_names(seed: int, names: list[str | int]) -> None:
    assert derive(seed, *names) == plainly_derived(seed, *names)


@settings(max_examples=30)
@given(st.integers(1, 70) | st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
@example(2**62, 3, None)
@example(1, 3, None)
def test_permutations_are_six_rounds_of_hashes(size: int, key: int, data: Any) -> None:
    indices = [0, size - 1, size // 2]
    if data:
        indices += data.draw(st.lists(st.integers(0, size - 1), max_size=3))
    elif size == 1:
        indices *= 2
    permutation = Permutation(size, key)
    expected = [plainly_permuted(size, key, index) for index in indices]
    found = permutation(indices)
    assert found.tolist() == expected
    assert found.dtype == np.int64
    assert permutation.inverse(expected).tolist() == indices
    assert permutation(np.reshape(indices[:2], (2, 1))).shape == (2, 1)
    if size <= 70:
        whole = [plainly_permuted(size, key, index) for index in range(size)]
        assert permutation(range(size)).tolist() == whole
        assert permutation.inverse(whole).tolist() == [*range(size)]


def plainly_shuffled(count: int, key: int) -> list[int]:
    """By the top 16 bits of a hash of their numbers."""
    digits = []
    for number in range(count):
        hashed = ((number + 1) * 0x9E3779B97F4A7C15 % 2**64 ^ key) * 0xD6E8FEB86659FD93 % 2**64
        digits.append((hashed ^ hashed >> 32) * 0x9E3779B97F4A7C15 % 2**64 >> 48)
    return sorted(range(count), key=lambda number: digits[number])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**64 - 1)), max_size=5))
def test_groups_are_sorted_by_hashes(groups: list[tuple[int, int]]) -> None:
    counts, keys = [count for count, _ in groups], [key for _, key in groups]
    expected: list[int] = []
    for count, key in groups:
        first = len(expected)
        expected += [first + number for number in plainly_shuffled(count, key)]
    found = shuffled_groups(np.array(counts, np.int64), keys)
    assert found.tolist() == expected
    assert found.dtype == np.int64


@pytest.mark.parametrize(("size", "indices"), [(0, [0]), (5, [0, 4, 5]), (5, [3, -1, 0])])
def test_an_index_outside_is_refused(size: int, indices: list[int]) -> None:
    for door in (Permutation(size, 0), Permutation(size, 0).inverse):
        assert door([]).tolist() == []
        with pytest.raises(IndexError, match=rf"^an index lies outside \[0, {size}\)$"):
            door(indices)


@pytest.mark.parametrize("size", [-1, 2**62 + 1])
def test_sizes_that_are_no_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^a permutation has 0 to 2\*\*62 elements, not {size}"):
        Permutation(size, 0)
