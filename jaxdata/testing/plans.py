"""The conservation law, read off the plan: which targets rows will train, without reading any."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.datasets import MixedDataset, PackedDataset
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.table import Segments

__all__ = ["assert_mixture_takes_every_row", "assert_rows_conserve", "packed_tables"]

Ints = NDArray[np.int64]


def packed_tables(rows: Any) -> list[PackedRows]:
    """The packed sources behind rows of `pack` or `mix`."""
    sources = rows.sources.values() if isinstance(rows, MixedDataset) else [rows]
    for source in sources:
        if not isinstance(source, PackedDataset):
            raise TypeError(f"expected rows as pack or mix return them, got {source!r}")
    return [source.table for source in sources]


def assert_rows_conserve(rows: Any, *, epoch: int = 0, most: int | None = None) -> int:
    """The rows of an epoch train each target of each document exactly once, in lengths alone.

    With `crop` at most once, and the summary counts those that were dropped. Stored loss masks
    take targets out of the loss later, and only there.

    Args:
        rows: what `pack` or `mix` returned.
        epoch: which pass over the documents.
        most: rows of each source to look at; of a source with more, only that nothing comes
            twice is seen. None for all.

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
    """Nothing comes twice: so all is there if the numbers agree."""
    dropped = table.summary.dropped_tokens if table.settings.strategy == "crop" else 0
    if trained + dropped != targets:
        raise AssertionError(
            f"{table.documents[0].name}: {targets} targets, {trained} of them in rows, "
            f"{dropped} dropped: {targets - trained - dropped} are nowhere"
        )


def _targets(found: Segments, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Documents, and the tokens `[begin, end)` of them that segments train, in their order."""
    begin = found.start + found.lead + 1
    end = np.minimum(found.start + found.slots + 1, lengths[found.document])
    order = np.lexsort((begin, found.document))
    order = order[begin[order] < end[order]]
    return found.document[order], begin[order], end[order]


def assert_mixture_takes_every_row(mixed: Any, starts: list[int], count: int) -> int:
    """A mixture takes the rows of each source one after the other and leaves none out.

    Args:
        mixed: what `mix` returned.
        starts: rows of the mixture at which to look.
        count: how many from each.

    Returns:
        The number of rows looked at.
    """
    seen, eras = 0, mixed.table.eras
    ends = [*(era.start for era in eras[1:]), len(mixed)]
    for start in starts:
        for era, end in zip(eras, ends, strict=True):
            seen += _takes_every_row(mixed, era, max(start, era.start), min(start + count, end))
    return seen


def _takes_every_row(mixed: Any, era: Any, start: int, stop: int) -> int:
    """Of rows in which one recipe is in force."""
    if start >= stop:
        return 0
    _, source, rank = mixed.table.select(np.arange(start, stop))
    before, after = era.used(start), era.used(stop)
    for number, name in enumerate(before):
        if not np.array_equal(rank[source == number], np.arange(before[name], after[name])):
            raise AssertionError(f"rows {start} to {stop - 1}: not every row of {name} once")
    return stop - start
