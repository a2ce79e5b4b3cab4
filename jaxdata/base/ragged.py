"""Things of unequal size, end to end: the items of groups, and ranges of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Ints = NDArray[np.int64]
AnyInts = NDArray[np.integer]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
AnyArray = NDArray[Any]
Int = TypeVar("Int", bound=np.integer)
Thing = TypeVar("Thing")


def in_runs(
    things: Iterable[Thing],
    size_of: Callable[[Thing], int],
    room: Callable[[], int],
    most: int = 2**63,
) -> Iterator[tuple[list[Thing], int]]:
    """Things in runs, to be worked on together, and the size of each run.

    A run ends when there is no `room` for more, as it is when the run begins, or at `most` things.

    >>> list(in_runs(["ab", "c", "defg", "h"], len, lambda: 3))
    [(['ab', 'c'], 3), (['defg'], 4), (['h'], 1)]
    """
    run: list[Thing] = []
    size, enough = 0, room()
    for thing in things:
        run.append(thing)
        size += size_of(thing)
        if size >= enough or len(run) == most:
            yield run, size
            run, size, enough = [], 0, room()
    if run:
        yield run, size


def expand(counts: NDArray[Int]) -> tuple[NDArray[Int], NDArray[Int]]:
    """The group of each item, and its number in the group, for groups of `counts` items.

    >>> [array.tolist() for array in expand(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    kind = counts.dtype
    group = np.repeat(np.arange(len(counts), dtype=kind), counts)
    first = np.cumsum(counts, dtype=kind) - counts
    return group, np.arange(len(group), dtype=kind) - first[group]


def consecutive(first: AnyInts, counts: AnyInts) -> Ints:
    """Runs of `counts` consecutive numbers, beginning at each of `first`, end to end.

    >>> consecutive(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist()
    [5, 6, 9, 10, 11]
    """
    numbers = np.repeat(first - np.cumsum(counts) + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers


def distinct(numbers: Ints, count: int) -> tuple[Ints, Ints]:
    """Those of the numbers below `count` that occur, ascending, and which of them each one is.

    >>> [array.tolist() for array in distinct(np.array([5, 2, 5]), 9)]
    [[2, 5], [1, 0, 1]]
    """
    if count > 2**12 + 16 * len(numbers):  # a few are sorted sooner than all are counted
        return np.unique(numbers, return_inverse=True)
    occurs = np.bincount(numbers, minlength=1) > 0
    return occurs.nonzero()[0], (occurs.cumsum() - 1)[numbers]


def by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Each value that occurs, ascending, and the places where it does.

    >>> [(value, places.tolist()) for value, places in by_value(np.array([5, 2, 5]))]
    [(2, [1]), (5, [0, 2])]
    """
    if len(values) and values.min() == values.max():  # as a rule: of one source, or epoch
        yield int(values[0]), np.arange(len(values))
        return
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def stable_order(keys: AnyInts, largest: int) -> AnyInts:
    """`argsort(keys, kind="stable")` of keys in `[0, largest]`, by counting.

    numpy sorts 16-bit integers by radix, in linear time: one pass for each 16 bits.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")  # by their lowest 16 bits
    for shift in range(16, max(largest, 1).bit_length(), 16):
        digit = (keys[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order


def descending_order(sizes: AnyInts) -> AnyInts:
    """Indices that sort sizes from the largest to the smallest; stable."""
    largest = int(sizes.max(initial=0))
    return stable_order(largest - sizes, largest)


def size_classes(sizes: AnyInts) -> tuple[Ints, AnyInts]:
    """The distinct sizes, decreasing, and how many items have each."""
    if int(sizes.max(initial=0)) >= 2**20:
        values, counts = np.unique(sizes, return_counts=True)
        return values[::-1].astype(np.int64), counts[::-1]
    counts = np.bincount(sizes)[::-1]
    values = np.flatnonzero(counts)
    return len(counts) - 1 - values, counts[values]


def even_cuts(sizes: AnyInts, most: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of things of these sizes, each of about `most`, and the size of each.

    >>> list(even_cuts(np.array([4, 1, 25, 1]), 10))
    [(0, 3, 30), (3, 4, 1)]
    """
    if len(sizes):
        ends = np.cumsum(sizes, dtype=np.int64)
        inner = np.searchsorted(ends, np.arange(most, int(ends[-1]), most)) + 1
        cuts = np.unique(np.concatenate([[0], inner, [len(ends)]]))
        totals = np.diff(np.append(0, ends[cuts[1:] - 1])).tolist()
        for (first, stop), size in zip(pairwise(cuts.tolist()), totals, strict=True):
            yield first, stop, size


def merged(group: Ints, start: Ints, stop: Ints, *, gap: int) -> tuple[Ints, Ints, Ints, Ints]:
    """The fewest extents that hold some ranges of groups, if gaps of up to `gap` are closed.

    Returns:
        The group, start and stop of each extent, and (ranges,) the extent that holds each range.

    >>> found = merged(np.array([0, 1, 0]), np.array([0, 5, 8]), np.array([4, 9, 12]), gap=4)
    >>> [column.tolist() for column in found]
    [[0, 1], [0, 5], [12, 9], [0, 1, 0]]
    """
    order = np.lexsort((start, group))
    groups, starts, stops = group[order], start[order], stop[order]
    # The furthest end so far in a group: groups lie apart by more than any has.
    apart = groups * (int(stops.max(initial=0)) + gap + 1)
    reach = np.maximum.accumulate(apart + stops)
    begins = np.append(True, apart[1:] + starts[1:] > reach[:-1] + gap)[: len(order)]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    owner = np.empty_like(order)
    owner[order] = np.cumsum(begins) - 1
    return groups[first], starts[first], (reach - apart)[last], owner


class ByteRanges(NamedTuple):
    """Byte ranges of buffers (an iovec), as columns.

    Range *k* is `memories[memory[k]][start[k]:stop[k]]`. An object for each range would cost more:
    Python's garbage collector would visit them all.
    """

    memories: Sequence[memoryview | bytes]
    memory: Ints
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, memories: Sequence[memoryview | bytes]) -> ByteRanges:
        """Each buffer as one range."""
        sizes = np.fromiter(map(len, memories), np.int64, len(memories))
        return cls(memories, np.arange(len(memories)), np.zeros_like(sizes), sizes)

    @classmethod
    def cut(cls, memory: memoryview | bytes, sizes: Ints) -> ByteRanges:
        """Consecutive ranges of `sizes` bytes of one buffer, from its beginning."""
        stop = np.cumsum(sizes)
        return cls([memory], np.zeros_like(stop), stop - sizes, stop)

    @classmethod
    def chain(cls, parts: Sequence[ByteRanges]) -> ByteRanges:
        """Several, end to end."""
        before = np.cumsum([0, *(len(part.memories) for part in parts)]).tolist()
        numbers = [part.memory + n for part, n in zip(parts, before, strict=False)]
        nothing = np.empty(0, np.int64)
        return cls(
            [memory for part in parts for memory in part.memories],
            np.concatenate([nothing, *numbers]),
            np.concatenate([nothing, *(part.start for part in parts)]),
            np.concatenate([nothing, *(part.stop for part in parts)]),
        )

    def take(self, chosen: Ints | slice) -> ByteRanges:
        """Some of the ranges."""
        return ByteRanges(self.memories, self.memory[chosen], self.start[chosen], self.stop[chosen])

    def inserted(self, at: Ints, sizes: Ints, memory: bytes) -> ByteRanges:
        """Insert a range of the first `sizes[k]` bytes of `memory` before range `at[k]`."""
        new = at + np.arange(len(at))
        before = np.bincount(at, minlength=len(self.start) + 1)[:-1]
        old = np.arange(len(self.start)) + np.cumsum(before)
        numbers, start, stop = (np.zeros(len(old) + len(new), np.int64) for _ in range(3))
        numbers[old], start[old], stop[old] = self.memory, self.start, self.stop
        numbers[new], stop[new] = len(self.memories), sizes
        return ByteRanges([*self.memories, memory], numbers, start, stop)

    def each(self) -> list[memoryview | bytes]:
        """A view of each range."""
        memories = self.memories
        columns = (self.memory.tolist(), self.start.tolist(), self.stop.tolist())
        return [memories[m][a:b] for m, a, b in zip(*columns, strict=True)]

    def join(self) -> bytes:
        """A copy of all ranges, end to end."""
        return b"".join(self.each())

    def array(self, dtype: DTypeLike) -> AnyArray:
        """The same as an array of some type, little-endian, that may be written to."""
        data = bytearray().join(self.each())
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))


def equal_runs(values: AnyArray) -> list[tuple[int, int]]:
    """Where runs of equal values begin and end.

    >>> equal_runs(np.array([1, 1, 0, 1])), equal_runs(np.array([]))
    ([(0, 2), (2, 3), (3, 4)], [])
    """
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return list(pairwise([0, *edges.tolist(), len(values)])) if len(values) else []
