"""The same batches, bit for bit, after restoring anywhere and on any number of hosts."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from jaxdata.feed.layouts import leaves
from jaxdata.feed.loader import Loader

Batch = Mapping[str, Any]


def assert_same_batches(one: Iterable[Any], other: Iterable[Any]) -> int:
    """Check that two streams of batches are equal; returns the number of batches.

    Of batches of any structure, their leaves are compared.

    Args:
        one: batches, such as a loader.
        other: those that they should be.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> one, other = (jaxdata.Loader(rows, batch_size=1, num_workers=0) for _ in range(2))
    >>> assert_same_batches(one, other)
    2
    """
    count = 0
    for count, (a, b) in enumerate(zip(map(leaves, one), map(leaves, other), strict=True), 1):
        if set(a) != set(b):
            raise AssertionError(f"batch {count - 1}: keys {sorted(a)} against {sorted(b)}")
        for name in a:
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if x.dtype != y.dtype or not np.array_equal(x, y):
                raise AssertionError(f"batch {count - 1}: {name} differs")
    return count


def assert_resumes_everywhere(
    loader_factory: Callable[[], Loader], *, tail: int | None = None, steps: int | None = None
) -> int:
    """Check that restoring at every step gives the same state and the same batches after it.

    Args:
        loader_factory: makes a new loader at its first row.
        tail: batches to compare after each restore; None for all (quadratic in the steps).
        steps: number of first steps to check; None for all.

    Returns:
        The number of steps at which the loader was restored.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> assert_resumes_everywhere(lambda: jaxdata.Loader(rows, batch_size=1))
    3
    """
    loader = loader_factory()
    states, batches = [loader.get_state()], []
    for batch in islice(loader, steps):
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.get_state())))
    loader.close()
    for step, state in enumerate(states):
        restored = loader_factory()
        restored.set_state(state)
        if restored.get_state() != state:
            raise AssertionError(f"step {step}: the state changed in restoring it")
        expected = batches[step:] if tail is None else batches[step : step + tail]
        assert_same_batches(expected, [next(restored) for _ in expected])
        restored.close()
    return len(states)


def assert_same_on_hosts(
    loader_factory: Callable[[tuple[int, int]], Loader],
    hosts: Sequence[int],
    *,
    steps: int | None = None,
) -> int:
    """Check that several hosts together make the batches of one, with the same state.

    Args:
        loader_factory: makes the loader of a `shard`.
        hosts: numbers of hosts to check; each must divide the batch size.
        steps: number of first steps to compare; None for all.

    Returns:
        The number of batches compared for each number of hosts.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> make = lambda shard: jaxdata.Loader(rows, batch_size=2, shard=shard)
    >>> assert_same_on_hosts(make, [1, 2])
    1
    """
    count = 0
    for number in hosts:
        one = loader_factory((0, 1))
        group = [loader_factory((host, number)) for host in range(number)]
        count = assert_same_batches(islice(one, steps), islice(joined(group), steps))
        different = [host for host in group if host.get_state() != one.get_state()]
        if different:
            raise AssertionError(f"{number} hosts: {len(different)} have another state than one")
        for loader in (one, *group):
            loader.close()
    return count


def joined(loaders: Sequence[Loader]) -> Iterator[Batch]:
    """The whole batches of several hosts' loaders, each of which makes one part."""
    for parts in zip(*loaders, strict=True):
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rows_of(batches: Iterable[Any]) -> Counter[bytes]:
    """How often each row is in batches."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        arrays = [np.asarray(leaf) for _, leaf in sorted(leaves(batch).items())]
        rows = max((len(array) for array in arrays if array.ndim), default=0)
        alike = [array for array in arrays if array.ndim and len(array) == rows]
        found.update(b"".join(array[row].tobytes() for array in alike) for row in range(rows))
    return found
