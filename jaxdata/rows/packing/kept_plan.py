"""The plan of a source that is kept, and its targets with loss: used only if they can be its."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance, progress_bar
from jaxdata.base.ragged import Ints, expand
from jaxdata.dataset.documents import Documents
from jaxdata.rows.packing.block_plan import BlockTable
from jaxdata.rows.packing.plan_cache import cached_table
from jaxdata.rows.packing.planner import Planner

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
    kept = documents.loss_tokens if keeps_all else None
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


def block_table(planner: Planner, progress: Advance | None) -> BlockTable:
    """The totals of each block, computed unless they are kept.

    Raises:
        DatasetError: lengths to be planned are not those that were written.
    """

    def compute() -> Ints:
        planner.documents.check_lengths()  # which planning reads anyway
        return planner.table(progress)

    def holds(table: Ints) -> bool:
        sound = table.shape[1:] == (planner.columns,) and not (table < 0).any()
        return sound and _adds_up(planner, BlockTable.of(table))

    return BlockTable.of(cached_table(planner.documents, planner.key(), compute, holds))


def other_plan(documents: Documents) -> DatasetError:
    """The error for lengths that were planned otherwise."""
    where = documents.store.url if documents.store else ""
    return DatasetError(
        f"{where}: the lengths of {documents.name} are not those that were planned: jaxdata verify "
        f"{where} names what is damaged; if nothing is, delete {where}/plans"
    )


def _adds_up(planner: Planner, table: BlockTable) -> bool:
    """Whether a table covers all documents and targets, and no row holds more than it can."""
    documents, most = planner.documents, planner.settings
    before, targets = np.cumsum(table.documents) - table.documents, _targets(documents)
    blocks = (
        (table.first == before)
        & (table.begun <= table.documents)
        & (table.finished <= table.begun)
        & (table.trained <= table.targets)
        & (table.trained + table.overlap <= table.filled)
        & (table.filled <= 2 * table.targets + table.documents)  # no overlap is half of a row
        & (table.rows <= table.filled)
        & (table.filled <= table.rows * most.seq_len)
    )
    return bool(
        blocks.all()
        and int(table.documents.sum()) == len(documents)
        and targets in (None, int(table.targets.sum()))
    )


def _targets(documents: Documents) -> int | None:
    """Tokens of all documents without the first of each; None if that is not known at once."""
    if stated := documents.stated_lengths:
        return stated.tokens - len(documents)
    lengths: Any = documents.lengths  # those of remaining documents are computed on demand
    if isinstance(lengths, np.ndarray):
        return int(lengths.sum(dtype=np.int64)) - int(np.count_nonzero(lengths))
    return None
