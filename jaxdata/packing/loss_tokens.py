"""Targets that have loss in an epoch of packed rows, after stored masks.

Packing knows lengths only. The count is the source's own, where it kept one and no strategy drops
targets; else the masks are read, once: the result is kept with the plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.packing.plan_cache import cached_table
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.progress import progress_bar
from jaxdata.ragged import Ints, expand

if TYPE_CHECKING:
    from jaxdata.packing.packed_rows import PackedRows

_DOCUMENTS = 4_096  # looked at together
_TARGETS = 2**22  # whose masks are read together, about
_PIECE = 2**20  # targets of a document

Targets = tuple[Ints, Ints, Ints]
"""Ranges of targets: document, first token, number of tokens."""


def known_loss_tokens(table: PackedRows) -> int | None:
    """Targets with loss in an epoch, where no mask must be read to know them; else None.

    Without masks, those that are trained; with them, what the source says.
    """
    documents, trained = table.documents[0], table.summary.trained_tokens
    if not documents.masked:
        return trained
    kept = getattr(documents, "loss_tokens", None) if _keeps_all(table) else None
    return kept if isinstance(kept, int) and 0 <= kept <= trained else None


def loss_tokens(table: PackedRows) -> int:
    """Targets with loss in an epoch."""
    known = known_loss_tokens(table)
    if known is not None:
        return known
    # Where every target is in a row, the count does not depend on how they are packed.
    whole, documents = _keeps_all(table), table.documents[0]
    key = {"data": documents.fingerprint} if whole else table.planner.key()
    targets = _all(documents) if whole else _packed(table)
    count = partial(_count, documents, targets, table.summary.trained_tokens)
    key = {"counts": "loss_tokens", **key}
    return int(cached_table(documents, key, count, partial(_can_be, table))[0])


def _can_be(table: PackedRows, kept: Ints) -> bool:
    """Whether a count can be that of the rows."""
    return kept.shape == (1,) and 0 <= kept[0] <= table.summary.trained_tokens


def _keeps_all(table: PackedRows) -> bool:
    return STRATEGIES[table.settings.strategy].keeps_all


def _count(documents: Documents, targets: Iterator[Targets], total: int) -> Ints:
    """Read the masks of all targets, in order; int64 (1,)."""
    found = done = 0
    with progress_bar("counting targets with loss") as progress:
        for document, first, count in targets:
            masks = documents.masks(document, first, count).views.join()
            found += int(np.count_nonzero(np.frombuffer(masks, np.uint8)))
            progress(done := done + int(count.sum()), total)
    return np.array([found])


def _all(documents: Documents) -> Iterator[Targets]:
    """Every token of every document but the first, in the order of the documents."""
    for start in range(0, len(documents), _DOCUMENTS):
        numbers = np.arange(start, min(start + _DOCUMENTS, len(documents)))
        targets = np.maximum(documents.lengths[numbers].astype(np.int64) - 1, 0)
        which, piece = expand(-(-targets // _PIECE))
        first = piece * _PIECE
        counts = np.minimum(targets[which] - first, _PIECE)
        yield from _together(numbers[which], first + 1, counts)


def _packed(table: PackedRows) -> Iterator[Targets]:
    """Those in the rows of an epoch."""
    step = max(1, _TARGETS // table.seq_len)
    for start in range(0, len(table), step):
        yield table.targets(np.arange(start, min(start + step, len(table))))


def _together(document: Ints, first: Ints, counts: Ints) -> Iterator[Targets]:
    """Split ranges where about `_TARGETS` of them are enough to read together."""
    cuts = np.searchsorted(np.cumsum(counts), np.arange(_TARGETS, counts.sum(), _TARGETS))
    columns = (np.split(column, cuts) for column in (document, first, counts))
    yield from zip(*columns, strict=True)
