"""Splits by position, as Megatron's: the first 98 % of the documents, and so on.

How many documents there are is known when all units are done. So all go to the first split, and
the units that belong to others, or lie across a border, are then done once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxdata.convert.receipts import Receipt
from jaxdata.convert.split_ratio import Ratio, read_ratio

__all__ = ["Deal", "deals", "documents_of", "is_dealt"]

Deal = tuple[int, ...]
"""For each split, the number of a unit's documents that belong to it or to one before it."""


def deals(ratio: str, counts: Sequence[int]) -> list[Deal]:
    """Deal the documents of units to splits: split `k` ends at `round(bound_k · documents)`.

    Args:
        ratio: the shares of the splits.
        counts: documents of each unit, in order.

    >>> deals("train=6,val=4", [3, 3, 4])
    [(3, 3), (3, 3), (0, 4)]
    >>> deals("train=5,val=5", [3, 3, 4])
    [(3, 3), (2, 3), (0, 4)]
    """
    documents = sum(counts)
    ends = [round(bound * documents) for bound in Ratio(read_ratio(ratio)).bounds]
    found, start = [], 0
    for count in counts:
        found.append(tuple(min(max(end - start, 0), count) for end in ends))
        start += count
    return found


def documents_of(receipt: Receipt, outputs: Sequence[str]) -> list[int]:
    """How many documents a unit wrote to each of some sources."""
    wrote = receipt.outputs
    return [len(wrote[name].lengths) if name in wrote else 0 for name in outputs]


def is_dealt(receipt: Receipt, outputs: Sequence[str], deal: Deal) -> bool:
    """Tell whether a unit was done with this deal; `outputs` are one of each split."""
    ends = [0, *deal]
    wanted = [end - start for start, end in pairwise(ends)]
    return documents_of(receipt, outputs) == wanted
