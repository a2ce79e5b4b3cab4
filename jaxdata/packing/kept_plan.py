"""The plan of a source that is kept: used only if it can be that of the documents' lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.documents.base import Documents, check_lengths, stated_lengths
from jaxdata.errors import DatasetError
from jaxdata.packing.block_plan import BlockTable
from jaxdata.packing.plan_cache import cached_table
from jaxdata.packing.planner import Planner
from jaxdata.progress import Advance
from jaxdata.ragged import Ints


def block_table(planner: Planner, progress: Advance | None) -> BlockTable:
    """The totals of each block, computed unless they are kept.

    Raises:
        DatasetError: lengths to be planned are not those that were written.
    """

    def compute() -> Ints:
        check_lengths(planner.documents)  # which planning reads anyway
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
    if stated := stated_lengths(documents):
        return stated.tokens - len(documents)
    lengths: Any = documents.lengths  # those of remaining documents are computed on demand
    if isinstance(lengths, np.ndarray):
        return int(lengths.sum(dtype=np.int64)) - int(np.count_nonzero(lengths))
    return None
