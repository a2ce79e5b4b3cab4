"""How often a document of some weight is listed: its whole part, and once more by chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import Ints
from jaxdata.seeds import derive

MOST = 10_000
"""largest weight: a longer list is a mistake"""


def copies_of(
    weights: NDArray[np.float64], documents: Ints, *, seed: int, source: str
) -> NDArray[np.int64]:
    """Times that documents are listed, int64 (documents,), on average their weights.

    The whole part of the weight, and one more with the probability of the rest, which a hash of the
    seed, the source and the document decides. So it is the same in every epoch, and does not depend
    on other documents.

    >>> numbers = np.arange(100_000)
    >>> found = copies_of(np.full(100_000, 2.3), numbers, seed=0, source="train/web")
    >>> sorted(set(found.tolist())), round(float(found.mean()), 2)
    ([2, 3], 2.3)
    """
    whole = np.floor(weights)
    return (whole + (_chance(documents, seed, source) < weights - whole)).astype(np.int64)


def _chance(documents: Ints, seed: int, source: str) -> NDArray[np.float64]:
    """Numbers in [0, 1) by a hash, the finaliser of splitmix64 (Steele and others, 2014)."""
    hashed = (documents.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    hashed += np.uint64(derive(seed, "weight", source))
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed ^= hashed >> np.uint64(31)
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
