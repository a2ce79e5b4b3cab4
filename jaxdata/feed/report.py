"""The report of a run: what it delivered so far, source by source, against its plan."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxdata.base.errors import InputError, counted
from jaxdata.feed.schedule import Schedule
from jaxdata.rows.mixing.mixture import asked_shares, planned_intervals
from jaxdata.rows.table import RowTable, TokenCounts
from jaxdata.storage.pages.read_counts import ReadCounts


@dataclass(frozen=True, kw_only=True)
class _Delivered:
    """What was delivered, all hosts together."""

    rows: int
    """those before the next row, without skipped ones"""
    documents_begun: int
    """documents whose first token was delivered; one of a later epoch counts again"""
    documents_finished: int
    """documents whose last token was delivered"""
    tokens: int
    """targets with loss, stored masks not counted"""
    padding: int
    """slots, without the rows that complete a last batch"""


@dataclass(frozen=True, kw_only=True)
class SourceReport(_Delivered):
    """One source up to a row of the run."""

    epochs: float
    """passes over its documents, skipped rows included"""
    share: float
    """of all tokens so far"""
    planned: float | None
    """the share that the weights ask for so far; None where nothing is mixed"""


@dataclass(frozen=True, kw_only=True)
class RunReport(_Delivered):
    """A run up to its next row; its `str()` is a table for a log."""

    step: int
    next_row: int
    slots: int
    sources: dict[str, SourceReport]
    passes: int = 0
    """whole passes before this one, whose rows are not counted"""
    reads: ReadCounts | None = None
    """what this host's process and its workers fetched from buckets; None where nothing is far"""

    @property
    def padding_share(self) -> float:
        """Padding as a fraction of all slots."""
        return self.padding / self.slots if self.slots else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def scalars(self) -> dict[str, float]:
        """Flat numbers by name, for a trainer's logger: `tokens`, `epochs/web`, `share/web`."""
        of_run = ("rows", "documents_begun", "documents_finished", "tokens", "padding_share")
        found: dict[str, float] = {"row": self.next_row, "pass": self.passes}
        found |= {name: getattr(self, name) for name in of_run}
        for name, source in self.sources.items():
            found |= {f"{of}/{name}": getattr(source, of) for of in ("tokens", "share", "epochs")}
        if self.reads is not None:
            found |= {f"reads/{name}": value for name, value in asdict(self.reads).items()}
        return found

    def __str__(self) -> str:
        width = max([len("source"), *map(len, self.sources)])
        lines = [
            f"{counted(self.rows, 'row')}, {counted(self.tokens, 'token')}, "
            f"{100 * self.padding_share:.2f} % padding",
            f"beginnings of {counted(self.documents_begun, 'document')}, ends of "
            f"{self.documents_finished:,}; parts come in any order",
            f"{'source':<{width}}  {'tokens':>15}  {'share':>9}  {'planned':>9}  "
            f"{'begins':>9}  {'ends':>9}  {'epochs':>7}",
        ]
        lines += [f"{name:<{width}}  {_columns(each)}" for name, each in self.sources.items()]
        if self.reads is not None:
            lines.append(f"this host fetched from buckets: {self.reads}")
        return "\n".join(lines)


def _columns(source: SourceReport) -> str:
    planned = "" if source.planned is None else f"{100 * source.planned:.3f} %"
    return (
        f"{source.tokens:>15,}  {100 * source.share:>7.3f} %  {planned:>9}  "
        f"{source.documents_begun:>9,}  {source.documents_finished:>9,}  {source.epochs:>7.3f}"
    )


def make_report(
    table: RowTable | None, schedule: Schedule, reads: ReadCounts | None, passes: int, first: int
) -> RunReport:
    """The report of a loader's rows up to where its schedule is.

    Args:
        table: its rows.
        schedule: its position.
        reads: what was fetched from buckets.
        passes: whole passes before this one, and
        first: the number in the table of its first row.
    """
    row = schedule.next_row
    if table is None:
        raise InputError(
            "the tokens of these rows cannot be counted: expected rows as pack and mix return "
            "them, not transformed ones"
        )
    found = delivered(table, schedule.skips.gaps, row, first)
    whole = sum(found.values(), TokenCounts())
    planned = asked_shares(planned_intervals(table, row))
    epochs = table.epochs(row)
    return RunReport(
        step=schedule.step,
        next_row=row,
        **whole.described(),
        slots=whole.slots,
        passes=passes,
        reads=reads,
        sources={
            name: SourceReport(
                **each.described(),
                epochs=float(epochs[name]),
                share=each.trained_tokens / max(whole.trained_tokens, 1),
                planned=planned.get(name),
            )
            for name, each in found.items()
        },
    )


def delivered(
    table: RowTable, gaps: Sequence[tuple[int, int]], row: int, first: int = 0
) -> dict[str, TokenCounts]:
    """The counts of the rows before `row` of a pass, without those in `gaps`: they were skipped."""

    def between(begin: int, stop: int) -> dict[str, TokenCounts]:
        after, before = (table.token_counts(first + at) for at in (stop, begin))
        return {name: after[name] - before[name] for name in after}

    found = between(0, row)
    for begin, stop in gaps:
        if begin < row:
            skipped = between(begin, min(stop, row))
            found = {name: found[name] - skipped[name] for name in found}
    return found
