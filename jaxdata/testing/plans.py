"""The conservation law, checked on the plan: which targets rows will train."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import numpy as np

from jaxdata.map_datasets.underlying import row_table
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.ragged import Ints
from jaxdata.rows.table import Segments


def packed_tables(rows: Any) -> list[PackedRows]:
    """The packed sources of rows made by `pack` or `mix`."""
    table = row_table(rows)
    if table is None or not table.sources:
        raise TypeError(f"expected rows as pack or mix return them, got {rows!r}")
    return [cast(PackedRows, source) for source in table.sources.values()]


def assert_rows_conserve(rows: Any, *, epoch: int = 0, most: int | None = None) -> int:
    """Check, from lengths alone, that an epoch trains each target of each document exactly once.

    At most once with a strategy that drops tokens (`crop`); the summary counts the dropped ones.
    Stored loss masks take targets out of the loss later, and only there.

    Args:
        rows: the result of `pack` or `mix`.
        epoch: the epoch to check.
        most: rows of each source to check; for a longer source, only repetitions are found. None
            for all.

    Returns:
        The number of targets accounted for.
    """
    return sum(_conserved(table, epoch, most) for table in packed_tables(rows))


def _conserved(table: PackedRows, epoch: int, most: int | None) -> int:
    name, total = table.documents[0].name, len(table)
    looked_at = total if most is None else min(most, total)
    lengths = np.asarray(table.documents[0].lengths).astype(np.int64)
    chosen = epoch * total + np.arange(looked_at)
    document, begin, end = _targets(table.segments(chosen), lengths)
    same = document[1:] == document[:-1]
    twice = np.flatnonzero(same & (begin[1:] < end[:-1]))
    if len(twice):
        at = twice[0] + 1
        raise AssertionError(f"{name}: target {begin[at]} of document {document[at]} comes twice")
    trained = int((end - begin).sum())
    if looked_at == total:
        _complete(table, trained, int(np.maximum(lengths - 1, 0).sum()))
    return trained


def _complete(table: PackedRows, trained: int, targets: int) -> None:
    """Check the totals; without repetitions, equal totals mean that nothing is missing."""
    keeps_all = STRATEGIES[table.settings.strategy].keeps_all
    dropped = 0 if keeps_all else table.summary.dropped_tokens
    if trained + dropped != targets:
        raise AssertionError(
            f"{table.documents[0].name}: {targets} targets, {trained} of them in rows, "
            f"{dropped} dropped: {targets - trained - dropped} are missing"
        )


def _targets(found: Segments, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Documents, and the tokens `[begin, end)` of them that segments train, sorted."""
    begin = found.start + found.context + 1
    end = np.minimum(found.start + found.slots + 1, lengths[found.document])
    order = np.lexsort((begin, found.document))
    order = order[begin[order] < end[order]]
    return found.document[order], begin[order], end[order]


def assert_mixture_takes_every_row(mixed: Any, starts: list[int], count: int) -> int:
    """Check that a mixture takes the rows of each source in order, without gaps.

    Args:
        mixed: the result of `mix`.
        starts: rows of the mixture from which to check.
        count: rows to check from each.

    Returns:
        The number of rows checked.
    """
    bounds = [0, *(each["row"] for each in mixed.table.amendments), len(mixed)]
    return sum(
        _takes_every_row(mixed, max(start, first), min(start + count, end))
        for start in starts
        for first, end in pairwise(bounds)
    )


def _takes_every_row(mixed: Any, start: int, stop: int) -> int:
    """Check rows of one recipe."""
    if start >= stop:
        return 0
    _, source, rank = mixed.table.select(np.arange(start, stop))
    inside = [i for i in mixed.table.intervals if i.start < stop and i.start + i.rows > start]
    used = zip(mixed.table.names, inside[0].used(start), inside[-1].used(stop), strict=False)
    for number, (name, before, after) in enumerate(used):
        if not np.array_equal(rank[source == number], np.arange(before, after)):
            raise AssertionError(f"rows {start} to {stop - 1}: not every row of {name} once")
    return stop - start
