"""A mixture as its timeline has it: row -> phase, source, row of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxdata.errors import SourceExhausted
from jaxdata.mixing.recipe import Recipe
from jaxdata.mixing.timeline import Timeline
from jaxdata.notebook import bars_html, color_of, table_html, visible
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.ragged import Ints
from jaxdata.rows.intervals import Exhaustion, Interval
from jaxdata.rows.table import RowTable


class Mixture(RowTable):
    """The part of a mixture that follows from its timeline.

    `tables` holds the rows of each source, in the order in which `select` numbers the sources; the
    recipe is the last one, if it was amended.
    """

    ends = True

    def __init__(
        self,
        tables: Mapping[str, RowTable],
        recipe: Recipe,
        timeline: Timeline,
        seq_len: int,
        positions: str,
    ) -> None:
        self.tables, self.recipe, self.timeline = dict(tables), recipe, timeline
        self.seq_len, self.positions = seq_len, positions
        self._starts = np.array([interval.start for interval in timeline.intervals], np.int64)

    def __len__(self) -> int:
        return sum(interval.rows for interval in self.timeline.intervals)

    @property
    def in_words(self) -> str:
        phases = len(self.timeline.phases)
        in_phases = f"{phases} phase{'s' * (phases != 1)}"
        return f"{super().in_words}, {', '.join(self.names)} in {in_phases}"

    def html(self, title: str) -> str:
        intervals = [each for each in self.intervals if each.rows]
        bars = [
            [(n, each.shares.get(n, 0.0), color_of(k)) for k, n in enumerate(self.names)]
            for each in intervals
        ]
        widths = [each.rows / max(len(self), 1) for each in intervals]
        rows = [
            (f"{i.start:,} to {i.start + i.rows - 1:,}", i.phase, *(share for _, share, _ in bar))
            for i, bar in zip(intervals, bars, strict=True)
        ]
        below = bars_html(bars, widths) + "".join(
            f"<div>{visible(each)}</div>" for each in self.exhaustions
        )
        return table_html(title, ["rows", "phase", *self.names], rows, below)

    @property
    def names(self) -> list[str]:
        """See `RowTable`; in the order that `select` numbers the sources."""
        return list(self.tables)

    @property
    def sources(self) -> Mapping[str, RowTable]:
        return {
            name: whole for name, table in self.tables.items() for whole in table.sources.values()
        }

    @property
    def intervals(self) -> Sequence[Interval]:
        return self.timeline.intervals

    @property
    def exhaustions(self) -> Sequence[Exhaustion]:
        return self.timeline.exhaustions

    def recipe_at(self, _row: int) -> Recipe:
        """The recipe of a row; amendments change it."""
        return self.recipe

    @property
    def loss_shares(self) -> Mapping[str, float]:
        """Of each source's trained tokens, the share that weights count; empty if they count all.

        It is that of an epoch, so it is exact of whole epochs and an average within them.
        """
        if self.recipe.weigh_by == "tokens":
            return {}
        return {
            name: table.loss_tokens / max(table.summary.trained_tokens, 1)
            for name, table in self.sources.items()
            if isinstance(table, PackedRows)
        }

    @property
    def halted(self) -> Exhaustion | None:
        """The exhaustion that ends the mixture before its budget is met, if any."""
        return self.timeline.halted

    def select(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(phase, source, row of the source) of rows of the mixture; int64 (rows,) each.

        The rows of a source count from 0 again where an amendment repacks it.
        """
        self._check_range(rows)
        phase, source, rank = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            mine, interval = np.flatnonzero(which == number), self.timeline.intervals[number]
            source[mine], rank[mine] = interval.tree.select(rows[mine] - interval.start)
            rank[mine] += np.asarray(interval.base)[source[mine]]
            phase[mine] = interval.phase
        return phase, source, rank

    def rows_of(self, source: int, ranks: Ints) -> Ints:
        """The inverse of `select`: the rows that are these rows of a source; -1 where none is."""
        found = np.full(len(ranks), -1)
        for interval in self.timeline.intervals:
            first, last = interval.base[source], interval.used(interval.start + interval.rows)
            mine = np.flatnonzero((ranks >= first) & (ranks < last[source]))
            if len(mine):
                here = interval.tree.rows_of(source, ranks[mine] - first)
                found[mine] = interval.start + here
        return found

    def _check_range(self, rows: Ints) -> None:
        start = self.timeline.start
        if len(rows) and not (rows.min() >= start and rows.max() < start + len(self)):
            raise IndexError(f"row index out of range for a mixture of {len(self)} rows")

    def counts(self, rows: int) -> dict[str, int]:
        """Rows of each source among the first `rows` of the mixture."""
        totals = dict.fromkeys(self.names, 0)
        for interval in self.timeline.intervals:
            if interval.start < rows:
                here = interval.tree.counts(min(rows - interval.start, interval.rows))
                for name, count in zip(totals, here, strict=False):  # later ones may be new
                    totals[name] += count
        return totals

    def end(self) -> SourceExhausted | None:
        halted = self.halted
        if halted is None:
            return None
        if self.recipe.on_exhaustion == "renormalize":
            return SourceExhausted(
                f"{halted}; it was the last one, so the run halts there. To continue, allow "
                "more epochs or add sources"
            )
        return SourceExhausted(
            f"{halted}; the run halts there. To continue, set on_exhaustion='renormalize' or allow "
            f"more epochs of {halted.source!r}"
        )
