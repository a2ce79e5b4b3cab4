"""Sources of any size, made of lengths that repeat: ten terabytes are planned in seconds.

Of the plan only what is asked for is made: blocks that somebody looks at are planned by the real
planner, and all blocks are taken to have as many rows as the average of some that were planned.
"""

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from corpus import lengths_of
from numpy.typing import NDArray

from jaxdata.dataset.documents import Documents, Gathered, StatedLengths
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.packing.block_plan import BlockPlan
from jaxdata.rows.packing.dealing import resolved
from jaxdata.rows.packing.dealt_blocks import PLANS, DealtBlocks
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.planner import BlockTable, Planner
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import RowShape

__all__ = ["MadePages", "SampledRows"]

Ints = NDArray[np.int64]
_TEMPLATE = 2**26  # bytes of documents that repeat
_PLANNED = 16  # blocks whose average stands for all


class _Lengths:
    """Lengths by number, without an array of them."""

    def __init__(self, template: NDArray[np.uint32]) -> None:
        self._template = template

    def __getitem__(self, documents: Ints) -> NDArray[np.uint32]:
        return self._template[np.asarray(documents) % len(self._template)]


class MadePages(Documents):
    """Documents of made lengths in one file of about `size` bytes (see `Documents`)."""

    dtype = np.dtype(np.uint16)

    def __init__(self, size: int, name: str = "train/made", seed: int = 0) -> None:
        self.name = name
        drawn = lengths_of(_TEMPLATE // 1_000, seed)
        edges = np.append(0, np.cumsum(drawn.astype(np.int64) * 2))
        stop = int(np.searchsorted(edges, _TEMPLATE, side="right")) - 1
        lengths = drawn[:stop].astype(np.uint32)
        lengths[-1] += (_TEMPLATE - edges[stop]) // 2  # the template is of whole pages
        self._template, self._edges = lengths, np.append(0, np.cumsum(lengths.astype(np.int64) * 2))
        self._times = max(round(size / _TEMPLATE), 1)
        self.lengths: Any = _Lengths(lengths)
        self.fingerprint = hashlib.sha256(f"{name}:{size}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._template) * self._times

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """There are none: only places are asked for."""
        raise NotImplementedError

    @property
    def stated_lengths(self) -> StatedLengths:
        """Their sum."""
        return StatedLengths(_TEMPLATE // 2 * self._times, self.fingerprint)

    def page_ends(self, size: int) -> Ints:
        """See `Documents`."""
        pages = self._edges[:-1] // size
        ends = np.append(np.flatnonzero(np.diff(pages)) + 1, len(self._template))
        return (np.arange(self._times)[:, None] * len(self._template) + ends).ravel()

    @property
    def file_sizes(self) -> Ints:
        """See `Documents`."""
        return np.array([_TEMPLATE * self._times])


class _SampledBlocks(DealtBlocks):
    """The real order and plans of made pages, but every block has the average of rows.

    A block with more rows loses the last of them; one with fewer ends in empty rows.
    """

    def __init__(self, documents: Any, settings: PackSettings) -> None:
        self.settings, self._source = settings, documents
        self.planner = Planner(documents, settings)
        bounds = self.planner.order.bounds
        blocks = len(bounds) - 1
        some = np.linspace(0, blocks - 1, min(_PLANNED, blocks)).astype(int).tolist()
        each = np.full(blocks, int(np.mean([plan.rows for plan in self.planner.plans(some)])))
        columns = dict.fromkeys(BlockTable._fields, each)
        columns |= {"first": bounds[:-1], "documents": np.diff(bounds), "rows": each}
        self.table = BlockTable(**columns)
        self.rows = int(each.sum())
        self.lanes = Lanes(self.rows, settings.lanes or 1)
        self._token = PLANS.owned_by(self)

    def _make_plans(self, blocks: list[int]) -> list[BlockPlan]:
        found = []
        for block, plan in zip(blocks, self.planner.plans(blocks), strict=True):
            rows = int(self.table.rows[block])
            starts = plan.row_starts[: rows + 1]
            starts = np.append(starts, np.full(rows + 1 - len(starts), starts[-1]))
            found.append(BlockPlan(starts, *plan.columns))
        return found


class SampledRows(PackedRows):
    """Rows of made pages: see `_SampledBlocks`."""

    def __init__(self, documents: MadePages, **settings: Any) -> None:
        made: Any = documents
        self.documents, self._source = (made,), made
        self.settings = resolved(made, PackSettings.checked(**settings))
        self.shape = RowShape(self.settings.seq_len, self.settings.positions, 1)
        self._keep(_SampledBlocks(made, self.settings))

    @property
    def summary(self) -> Any:
        """Only what shares of a mixture need."""
        return SimpleNamespace(trained_tokens=len(self) * self.seq_len)
