"""Targets that have loss in an epoch of packed rows, after stored masks.

Packing knows lengths only. The count is the source's own, where it kept one and no strategy drops
targets; else the masks are read, once: the result is kept with the plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.packing.plan_cache import cached_table
from jaxdata.progress import progress_bar
from jaxdata.ragged import Ints, expand

_DOCUMENTS = 4_096  # looked at together
TARGETS = 2**22
"""Targets whose masks are read together, about."""
_PIECE = 2**20  # targets of a document

Targets = tuple[Ints, Ints, Ints]
"""Ranges of targets: document, first token, number of tokens."""


def known_loss_tokens(documents: Documents, trained: int, *, keeps_all: bool) -> int | None:
    """Targets with loss in an epoch of `trained` ones, if no mask must be read; else None.

    Without masks that is all of them; with masks, what the source says, if every target is in a row
    (`keeps_all`).
    """
    if not documents.masked:
        return trained
    kept = getattr(documents, "loss_tokens", None) if keeps_all else None
    return kept if isinstance(kept, int) and 0 <= kept <= trained else None


def counted_loss_tokens(
    documents: Documents, trained: int, key: dict[str, Any], targets: Iterator[Targets]
) -> int:
    """The same from the masks of `targets`, which are read at most once for a `key`."""

    def can_be(kept: Ints) -> bool:
        return kept.shape == (1,) and 0 <= kept[0] <= trained

    count = partial(_count, documents, targets, trained)
    return int(cached_table(documents, {"counts": "loss_tokens", **key}, count, can_be)[0])


def _count(documents: Documents, targets: Iterator[Targets], total: int) -> Ints:
    """Read the masks of all targets, in order; int64 (1,)."""
    found = done = 0
    with progress_bar("counting targets with loss") as progress:
        for document, first, count in targets:
            masks = documents.masks(document, first, count).views.join()
            found += int(np.count_nonzero(np.frombuffer(masks, np.uint8)))
            progress(done := done + int(count.sum()), total)
    return np.array([found])


def all_targets(documents: Documents) -> Iterator[Targets]:
    """Every token of every document but the first, in the order of the documents."""
    for start in range(0, len(documents), _DOCUMENTS):
        numbers = np.arange(start, min(start + _DOCUMENTS, len(documents)))
        targets = np.maximum(documents.lengths[numbers].astype(np.int64) - 1, 0)
        which, piece = expand(-(-targets // _PIECE))
        first = piece * _PIECE
        counts = np.minimum(targets[which] - first, _PIECE)
        yield from _together(numbers[which], first + 1, counts)


def _together(document: Ints, first: Ints, counts: Ints) -> Iterator[Targets]:
    """Split ranges where about `TARGETS` of them are enough to read together."""
    cuts = np.searchsorted(np.cumsum(counts), np.arange(TARGETS, counts.sum(), TARGETS))
    columns = (np.split(column, cuts) for column in (document, first, counts))
    yield from zip(*columns, strict=True)
