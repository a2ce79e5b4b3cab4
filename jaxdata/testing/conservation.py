"""The conservation law, checked on delivered batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents

Batch = Mapping[str, Any]


def assert_exactly_once(
    batches: Iterable[Batch], documents: Sequence[Documents], epochs: int = 1
) -> int:
    """Check that every token but the first of each document is a target exactly once.

    Compares the (input, target) pairs with loss in the batches with those of the documents. With
    distinct token ids (`distinct_documents`) that covers each token; in real text, each pair as
    often as it occurs. Stored masks are respected.

    Args:
        batches: all delivered batches, of all hosts.
        documents: the sources, as from `dataset.source(...)`.
        epochs: times that each token is expected.

    Returns:
        The number of targets with loss.
    """
    delivered = _sorted([_pairs_of_batch(batch) for batch in batches])
    once = [pairs for source in documents for pairs in _pairs_of_source(source)]
    expected = _sorted(once * epochs)
    if not np.array_equal(delivered, expected):
        missing, extra = _difference(expected, delivered), _difference(delivered, expected)
        raise AssertionError(
            f"{len(expected)} targets expected exactly {epochs}x, {len(delivered)} delivered: "
            f"{len(missing)} missing (e.g. {_show(missing)}), {len(extra)} too often "
            f"(e.g. {_show(extra)})"
        )
    return len(delivered)


def _pairs_of_batch(batch: Batch) -> NDArray[np.int64]:
    loss = np.asarray(batch["loss_mask"], bool)
    return _pairs(np.asarray(batch["inputs"])[loss], np.asarray(batch["targets"])[loss])


def _pairs_of_source(source: Documents) -> Iterable[NDArray[np.int64]]:
    for number in range(len(source)):
        item = source[number]
        pairs = _pairs(item["tokens"][:-1], item["tokens"][1:])
        yield pairs[item["loss_mask"][1:]] if source.masked else pairs


def _pairs(inputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    return (inputs.astype(np.int64) << 32) | targets.astype(np.int64)


def _sorted(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def _difference(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elements that occur more often in `a` than in `b`."""
    values, counts = np.unique(a, return_counts=True)
    place = np.searchsorted(b, values, side="right") - np.searchsorted(b, values)
    return np.asarray(values[counts > place], np.int64)


def _show(pairs: NDArray[np.int64]) -> str:
    return ", ".join(f"{pair >> 32}->{pair & 0xFFFFFFFF}" for pair in pairs[:3].tolist()) or "none"
