"""What a run has delivered so far, source by source, and what its plan says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxdata.feed.schedule import Schedule
from jaxdata.rows.amounts import Amounts, Counted, counted
from jaxdata.rows.forecast import asked_shares, planned_stretches
from jaxdata.rows.mixture import MixedRows

__all__ = ["RunReport", "SourceReport", "make_report"]


@dataclass(frozen=True)
class SourceReport:
    """One source up to a row of the run."""

    rows: int
    documents: int
    """documents begun; one that is read again counts again"""
    tokens: int
    """targets with loss, stored masks not counted"""
    padding: int
    """slots"""
    epochs: float
    """passes over its documents, rows that were skipped counted"""
    share: float
    """of all tokens so far"""
    planned: float | None
    """the share that the weights ask for up to here; None where nothing is mixed"""


@dataclass(frozen=True)
class RunReport:
    """A run up to its next row, all hosts together; `str()` of it is a table for a log."""

    step: int
    next_row: int
    rows: int
    """rows delivered: those before the next one that were not skipped"""
    documents: int
    tokens: int
    padding: int
    """slots, those of rows that complete a last batch not counted"""
    slots: int
    sources: dict[str, SourceReport]

    @property
    def padding_share(self) -> float:
        """Share of the slots that trained nothing."""
        return self.padding / self.slots if self.slots else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        width = max([len("source"), *map(len, self.sources)])
        lines = [
            f"{self.rows:,} rows, {self.tokens:,} tokens of {self.documents:,} documents, "
            f"{100 * self.padding_share:.2f} % padding",
            f"{'source':<{width}}  {'tokens':>15}  {'share':>8}  {'planned':>8}  "
            f"{'documents':>11}  {'epochs':>7}",
        ]
        lines += [f"{name:<{width}}  {_columns(each)}" for name, each in self.sources.items()]
        return "\n".join(lines)


def _columns(source: SourceReport) -> str:
    planned = "" if source.planned is None else f"{100 * source.planned:.3f} %"
    return (
        f"{source.tokens:>15,}  {100 * source.share:>6.3f} %  {planned:>8}  "
        f"{source.documents:>11,}  {source.epochs:>7.3f}"
    )


def make_report(table: Any, schedule: Schedule) -> RunReport:
    """The report of a loader's rows up to where its schedule is."""
    row = schedule.next_row
    found = _delivered(counted(table), schedule, row)
    whole = sum(found.values(), Amounts())
    mixed = isinstance(table, MixedRows)
    planned = asked_shares(planned_stretches(table, row)) if mixed else {}
    epochs = _epochs(table, row, found)
    return RunReport(
        step=schedule.step,
        next_row=row,
        rows=whole.rows,
        documents=whole.documents,
        tokens=whole.trained_tokens,
        padding=whole.padding,
        slots=whole.slots,
        sources={
            name: SourceReport(
                rows=each.rows,
                documents=each.documents,
                tokens=each.trained_tokens,
                padding=each.padding,
                epochs=epochs[name],
                share=each.trained_tokens / max(whole.trained_tokens, 1),
                planned=planned.get(name),
            )
            for name, each in found.items()
        },
    )


def _epochs(table: Any, row: int, found: Mapping[str, Amounts]) -> dict[str, float]:
    """How often each source was read before a row."""
    if isinstance(table, MixedRows):
        return {name: float(epochs) for name, epochs in table.epochs(row).items()}
    rows = counted(table).epoch_rows()
    return {name: each.rows / max(rows[name], 1) for name, each in found.items()}


def _delivered(table: Counted, schedule: Schedule, row: int) -> dict[str, Amounts]:
    """All before a row but what was skipped."""
    found = table.amounts(row)
    for first, stop in schedule.skips.gaps:
        if first < row:
            before, after = table.amounts(first), table.amounts(min(stop, row))
            found = {name: found[name] - (after[name] - before[name]) for name in found}
    return found
