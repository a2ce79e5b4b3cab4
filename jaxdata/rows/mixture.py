"""Rows of several sources mixed by exact shares of trained tokens, phase after phase."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError, SourceExhausted
from jaxdata.rows.amounts import Amounts, total
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.phases import Exhaustion, Phase, demand, schedule
from jaxdata.rows.table import Segments

__all__ = ["MixedRows"]

Ints = NDArray[np.int64]


class MixedRows:
    """The row table of a mixture (see `RowTable`): row -> (phase, source, row of source).

    Args:
        tables: packed rows by the name of their source, all of one `seq_len`.
        phases: the curriculum.
        epochs: how often a source may be seen; 1 where not said, fractions allowed.
        on_exhaustion: what to do where a source has too few rows.
    """

    def __init__(
        self,
        tables: Mapping[str, PackedRows],
        phases: Sequence[Phase],
        epochs: Mapping[str, float] | None = None,
        on_exhaustion: str = "refuse",
    ) -> None:
        self.names, self._tables = list(tables), list(tables.values())
        self.phases, self.on_exhaustion = list(phases), on_exhaustion
        self.epochs = dict(epochs or {})
        self.seq_len = _common(tables, "seq_len")
        self.positions = _common(tables, "positions")
        self.documents = [table.documents[0] for table in self._tables]
        self._lay_out()

    def _lay_out(self) -> None:
        for name, table in self._items():
            if not len(table) and any(phase.weights.get(name) for phase in self.phases):
                raise InputError(f"source {name!r} has no rows to train on, yet a phase weighs it")
        facts = {
            "seq_len": self.seq_len,
            "tokens_per_row": [_tokens_per_row(table) for table in self._tables],
            "available": self._available(),
        }
        self.stretches, self.exhaustions = schedule(
            self.names, self.phases, on_exhaustion=self.on_exhaustion, **facts
        )
        if self.on_exhaustion == "refuse":
            demand(self.names, self.phases, **facts)
        self._starts = np.asarray([stretch.start for stretch in self.stretches], np.int64)

    def _available(self) -> list[int]:
        unknown = set(self.epochs) - set(self.names)
        if unknown:
            raise InputError(f"epochs names {sorted(unknown)}, the sources are {self.names}")
        return [
            math.ceil(Fraction(str(self.epochs.get(name, 1))) * len(table))
            for name, table in zip(self.names, self._tables, strict=True)
        ]

    def __len__(self) -> int:
        return sum(stretch.rows for stretch in self.stretches)

    @property
    def halted(self) -> Exhaustion | None:
        """The exhaustion at which the mixture ends before its budget, if any."""
        budget = sum(phase.budget(self.seq_len) for phase in self.phases)
        return self.exhaustions[-1] if len(self) < budget else None

    def select(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(phase, source, row of source) of rows of the mixture; int64 (rows,) each."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"a row lies outside this mixture of {len(self)} rows")
        phase, source, rank = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            mine, stretch = np.flatnonzero(which == number), self.stretches[number]
            source[mine], rank[mine] = stretch.tree.select(rows[mine] - stretch.start)
            rank[mine] += np.asarray(stretch.base)[source[mine]]
            phase[mine] = stretch.phase
        return phase, source, rank

    def counts(self, rows: int) -> dict[str, int]:
        """Rows of each source among the first `rows` of the mixture."""
        counts = [0] * len(self.names)
        for stretch in self.stretches:
            if stretch.start < rows:
                here = stretch.tree.counts(min(rows - stretch.start, stretch.rows))
                counts = [a + b for a, b in zip(stretch.base, here, strict=True)]
        return dict(zip(self.names, counts, strict=True))

    def amounts(self, rows: int) -> dict[str, Amounts]:
        """See `Counted`."""
        counts = self.counts(rows)
        return {name: total(table, counts[name]) for name, table in self._items()}

    def epoch_rows(self) -> dict[str, int]:
        """See `Counted`."""
        return {name: len(table) for name, table in self._items()}

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`."""
        _, source, rank = self.select(rows)
        parts = []
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            found = self._tables[number].segments(rank[mine])
            origin = np.full(len(found.row), number, np.int64)
            parts.append(replace(found, row=mine[found.row], source=origin))
        return Segments.join(parts) if parts else Segments(*([np.empty(0, np.int64)] * 6))

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; facts that all sources share are named once."""
        each = [table.identity() for table in self._tables]
        shared = {
            key: value for key, value in each[0].items() if all(e[key] == value for e in each)
        }
        own = {
            f"{name}.{key}": value
            for name, facts in zip(self.names, each, strict=True)
            for key, value in facts.items()
            if key not in shared and key != "data"
        }
        data = {name: table.documents[0].fingerprint[:8] for name, table in self._items()}
        recipe = [[phase.budget(self.seq_len), dict(phase.weights)] for phase in self.phases]
        return {
            **shared,
            **own,
            "data": _brief(data),
            "phases": _brief(recipe),
            "epochs": _brief(self.epochs),
            "on_exhaustion": self.on_exhaustion,
        }

    def _items(self) -> list[tuple[str, PackedRows]]:
        return list(zip(self.names, self._tables, strict=True))

    def end(self) -> SourceExhausted | None:
        """The error with which a loader ends after the last row, where the budget is not met."""
        halted = self.halted
        if halted is None:
            return None
        return SourceExhausted(
            f"{halted}; the run halts there. To go on: on_exhaustion='renormalize', or more "
            f"epochs of {halted.source!r}"
        )


def _tokens_per_row(table: PackedRows) -> Fraction:
    """Trained tokens a row over an epoch; 1 for a source without rows, which no phase weighs."""
    return Fraction(table.summary.trained_tokens, len(table)) if len(table) else Fraction(1)


def _common(tables: Mapping[str, PackedRows], field: str) -> Any:
    values = {name: getattr(table, field) for name, table in tables.items()}
    if len(set(values.values())) != 1:
        raise InputError(f"sources of a mixture must share one {field}, these have {values}")
    return next(iter(values.values()))


def _brief(value: Any) -> Any:
    """The value where it is short, else the first 8 hex digits of its sha256."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= 160 else hashlib.sha256(text.encode()).hexdigest()[:8]
