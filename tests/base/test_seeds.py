from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.seeds import Permutation, derive, shuffled_groups

GOLDEN_SEED = 12717025599298937298
GOLDEN_TEN = [5, 0, 2, 8, 7, 3, 9, 1, 4, 6]
GOLDEN_GROUPS = [0, 1, 3, 2, 8, 5, 7, 6, 4, 9]
GOLDEN_LARGE = [148632783486, 449960320040, 830299766943, 520552042901]
EDGES = [size for k in range(1, 21) for size in (2**k - 1, 2**k, 2**k + 1)]


@pytest.mark.parametrize("size", [*EDGES, 65_537, 262_145, 1_048_577])
def test_it_is_a_bijection(size: int) -> None:
    order = Permutation(size, derive(0, "test"))(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [2**30 + 1, 10**9 + 7, 2**40 - 1, 2**40, 2**61 + 3])
@pytest.mark.parametrize("start", [0, 37, 100])
def test_dense_ranges_of_large_domains_keep_distinct(size: int, start: int) -> None:
    first = (size - 200_000) * start // 100
    index = np.arange(first, first + 200_000)
    permutation = Permutation(size, derive(1, "large"))
    order = permutation(index)
    assert order.min() >= 0
    assert order.max() < size
    assert len(np.unique(order)) == len(index)
    assert np.array_equal(permutation.inverse(order), index)


@given(st.integers(1, 5_000), st.integers(0, 2**64 - 1))
def test_the_inverse_undoes_it(size: int, key: int) -> None:
    permutation = Permutation(size, key)
    assert np.array_equal(permutation.inverse(permutation(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", [2, 5, 1_000, 2**15, 100_003])
def test_many_indices_at_once_are_what_each_is_alone(size: int) -> None:
    permutation, index = Permutation(size, 11), np.arange(size)
    alone = [int(permutation([one])[0]) for one in index[:: 1 + size // 500].tolist()]
    assert permutation(index)[:: 1 + size // 500].tolist() == alone
    assert permutation.inverse(permutation(index)).tolist() == index.tolist()
    copied = pickle.loads(pickle.dumps(permutation))
    assert copied(index).tolist() == permutation(index).tolist()


def test_orders_differ_with_each_name_and_seed() -> None:
    keys = [
        derive(seed, source, epoch)
        for seed in range(4)
        for source in ("web", "code")
        for epoch in range(4)
    ]
    orders = {tuple(Permutation(1_000, key)(np.arange(1_000)).tolist()) for key in keys}
    assert len(orders) == len(keys)


def test_neighbouring_seeds_and_epochs_do_not_collide() -> None:
    assert derive(42, "rows", 1) != derive(43, "rows", 0)
    assert derive(0, "a", "b") != derive(0, "ab")
    assert derive(0, "1") != derive(0, 1)


def test_small_domains_reach_every_order() -> None:
    orders = {tuple(Permutation(4, derive(key, "q"))(np.arange(4)).tolist()) for key in range(600)}
    assert len(orders) == 24


def test_neighbours_are_torn_apart() -> None:
    size = 100_000
    order = Permutation(size, derive(0, "spread"))(np.arange(size))
    assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 0.02
    # A uniform order keeps about one pair of neighbours side by side on each side.
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 12


def test_golden_values() -> None:
    assert derive(0, "deal", "train/web") == GOLDEN_SEED
    assert Permutation(10, 7)(np.arange(10)).tolist() == GOLDEN_TEN
    assert Permutation(10**12, 7)([0, 1, 10**11, 10**12 - 1]).tolist() == GOLDEN_LARGE


def plainly_derived(seed: int, *names: str | int) -> int:
    """Of each part its kind, a colon and its text, after the number of those bytes."""
    parts = [f"{kind}:{part}".encode() for part in (seed, *names) for kind in [kind_of(part)]]
    whole = b"".join(bytes([len(part), 0, 0, 0, 0, 0, 0, 0]) + part for part in parts)
    found = hashlib.blake2b(whole, digest_size=8, person=b"jaxdata.seed").digest()
    return sum(byte << (8 * place) for place, byte in enumerate(found))


def kind_of(part: str | int) -> str:
    return "str" if isinstance(part, str) else "int"


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
@example(2**62 - 1, 3, None)
@example(2**61 + 1, 3, None)
@example(1, 3, None)
def test_permutations_are_six_rounds_of_hashes(
    size: int, key: int, data: st.DataObject | None
) -> None:
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


def test_indices_keep_their_shape_and_their_numbers() -> None:
    permutation = Permutation(40, 9)
    given = np.arange(24).reshape(2, 3, 4)
    before = given.copy()
    assert permutation(given).shape == permutation.inverse(given).shape == (2, 3, 4)
    assert permutation(given).ravel().tolist() == permutation(range(24)).tolist()
    assert permutation(7).shape == ()
    assert np.array_equal(given, before)
    assert len(permutation) == permutation.size == 40


def test_permutations_of_nothing_hold_no_index() -> None:
    nothing = Permutation(0, 4)
    assert (len(nothing), nothing([]).tolist(), nothing.inverse([]).tolist()) == (0, [], [])
    with pytest.raises(IndexError, match=r"an index lies outside \[0, 0\)"):
        nothing([0])


@pytest.mark.parametrize("size", [-1, 2**62 + 1])
def test_sizes_that_are_no_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"^a permutation has 0 to") as caught:
        Permutation(size, 0)
    assert str(caught.value) == f"a permutation has 0 to 2**62 elements, not {size}"


def test_one_index_outside_among_others_is_refused() -> None:
    for indices in ([0, 4, 5], [3, -1, 0]):
        for door in (Permutation(5, 0), Permutation(5, 0).inverse):
            with pytest.raises(IndexError) as caught:
                door(indices)
            assert str(caught.value) == "an index lies outside [0, 5)"


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"outside \[0, 5\)"):
        Permutation(5, 0)([index])


@given(st.lists(st.integers(0, 90), max_size=9), st.integers(0, 2**63))
def test_groups_are_shuffled_each_by_its_key(counts: list[int], key: int) -> None:
    keys = [key + number for number in range(len(counts))]
    found = shuffled_groups(np.array(counts, np.int64), keys)
    first = 0
    for count, own in zip(counts, keys, strict=True):
        part = found[first : first + count] - first
        assert sorted(part.tolist()) == list(range(count))
        assert part.tolist() == shuffled_groups(np.array([count]), [own]).tolist()
        first += count
    assert len(found) == first


def test_the_order_of_groups_never_changes() -> None:
    assert shuffled_groups(np.array([4, 6]), [7, 2**64 - 1]).tolist() == GOLDEN_GROUPS


@pytest.mark.parametrize("count", [50, 5_000, 100_000])
def test_groups_keep_nothing_of_their_order(count: int) -> None:
    drawn = [shuffled_groups(np.array([count]), [derive(0, key)]) for key in range(40)]
    together = np.mean([np.mean(np.diff(order) == 1) for order in drawn])
    assert together * count < 1 + 3 / np.sqrt(40) + count / 2**16  # equal hashes stay in order
    halves = [np.mean(order[: count // 2] < count // 2) for order in drawn]
    assert abs(np.mean(halves) - 0.5) < 4 * 0.5 / np.sqrt(40 * count)
    assert np.std(halves) < 2 * 0.5 / np.sqrt(count)
