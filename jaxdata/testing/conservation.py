"""The conservation law, checked on plans, on delivered batches and token by token."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from jaxdata.base.ragged import AnyArray, Ints
from jaxdata.dataset.documents import Documents
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import Batch, RowTable, Segments


def assert_batches_hold_documents(
    batches: Iterable[tuple[Iterable[int], Mapping[str, Any]]], rows: Any
) -> int:
    """Check every slot of every delivered row against the documents.

    Args:
        batches: (row numbers, batch) pairs.
        rows: the result of `pack` or `mix`.

    Returns:
        The number of slots compared.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.Loader(rows, batch_size=2)
    >>> assert_batches_hold_documents([([0, 1], next(loader))], rows)
    4
    """
    slots, table = 0, row_table(rows)
    assert table is not None, "expected rows as pack or mix return them"
    for numbers, batch in batches:
        for at, number in enumerate(numbers):
            for name, expected in slow_row(table, number).items():
                found = np.asarray(batch[name][at])
                if not np.array_equal(found, expected):
                    slot = int(np.flatnonzero(found != expected)[0])
                    raise AssertionError(
                        f"row {number}: {name}[{slot}] is {found[slot]}, and {expected[slot]} by "
                        "its documents"
                    )
            slots += len(expected)
    return slots


def slow_row(table: RowTable, number: int) -> Batch:
    """Build one row from its documents, by the definition of a row."""
    shape = table.section_at(number)
    row: Batch = {
        name: np.zeros(shape.seq_len, bool if name == "loss_mask" else np.int32)
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions")
    }
    found, slot = table.segments(np.array([number])), 0
    fields = (found.source, found.document, found.start, found.slots, found.context)
    for segment, values in enumerate(zip(*(f.tolist() for f in fields), strict=True), 1):
        source, document, start, slots, context = values
        item = table.documents[source][document]
        tokens, mask = item["tokens"], item.get("loss_mask")
        for k in range(slots):
            target = start + k + 1
            row["inputs"][slot] = tokens[target - 1]
            row["segment_ids"][slot] = segment
            row["positions"][slot] = slot if shape.positions == "row" else k
            if target < len(tokens):
                row["targets"][slot] = tokens[target]
                row["loss_mask"][slot] = k >= context and (mask is None or mask[target])
            slot += 1
        slot += -slot % shape.multiple
    return row


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

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> assert_rows_conserve(rows)
    4
    """
    return sum(_conserved(table, epoch, most) for table in packed_tables(rows))


def _conserved(table: PackedRows, epoch: int, most: int | None) -> int:
    name, dealt = table.documents[0].name, table.deal(epoch)
    looked_at = dealt.rows if most is None else min(most, dealt.rows)
    lengths = np.asarray(table.documents[0].lengths).astype(np.int64)
    chosen = table.first_row(epoch) + np.arange(looked_at)
    document, begin, end = _targets(table.segments(chosen), lengths)
    same = document[1:] == document[:-1]
    twice = np.flatnonzero(same & (begin[1:] < end[:-1]))
    if len(twice):
        at = twice[0] + 1
        raise AssertionError(f"{name}: target {begin[at]} of document {document[at]} comes twice")
    trained = int((end - begin).sum())
    targets = int(np.maximum(lengths - 1, 0).sum())
    keeps_all = STRATEGIES[table.settings.strategy].keeps_all
    dropped = 0 if keeps_all else dealt.targets - dealt.whole.trained_tokens
    # Without repetitions, equal totals mean that nothing is missing.
    if looked_at == dealt.rows and trained + dropped != targets:
        raise AssertionError(
            f"{name}: {targets} targets, {trained} of them in rows, {dropped} dropped: "
            f"{targets - trained - dropped} are missing"
        )
    return trained


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


def assert_exactly_once(
    batches: Iterable[Mapping[str, Any]], documents: Sequence[Documents], epochs: int = 1
) -> int:
    """Check that every token but the first of each document is a target exactly once.

    Compares the (input, target) pairs with loss in the batches with those of the documents. With
    distinct token ids (`distinct_documents`) that covers each token; in real text, each pair as
    often as it occurs. Stored masks are respected.

    Args:
        batches: all delivered batches, of all hosts.
        documents: the sources, as from `dataset.source(...)`.
        epochs: times that each token is expected.

    Returns:
        The number of targets with loss.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]])
    >>> loader = jaxdata.Loader(jaxdata.pack(docs, seq_len=2), batch_size=2)
    >>> assert_exactly_once(loader, [docs])
    4
    """
    found = []
    for batch in batches:
        loss = np.asarray(batch["loss_mask"], bool)
        found.append(_pairs(*(np.asarray(batch[name])[loss] for name in ("inputs", "targets"))))
    delivered = _sorted(found)
    once = [each for source in documents for each in _pairs_of_source(source)]
    expected = _sorted(once * epochs)
    if not np.array_equal(delivered, expected):
        missing, extra = _difference(expected, delivered), _difference(delivered, expected)
        raise AssertionError(
            f"{len(expected)} targets expected exactly {epochs}x, {len(delivered)} delivered: "
            f"{len(missing)} missing (e.g. {_show(missing)}), {len(extra)} too often "
            f"(e.g. {_show(extra)})"
        )
    return len(delivered)


def _pairs_of_source(source: Documents) -> Iterable[Ints]:
    for number in range(len(source)):
        item = source[number]
        pairs = _pairs(item["tokens"][:-1], item["tokens"][1:])
        yield pairs[item["loss_mask"][1:]] if source.masked else pairs


def _pairs(inputs: AnyArray, targets: AnyArray) -> Ints:
    return (inputs.astype(np.int64) << 32) | targets.astype(np.int64)


def _sorted(parts: list[Ints]) -> Ints:
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def _difference(a: Ints, b: Ints) -> Ints:
    """Elements that occur more often in `a` than in `b`."""
    values, counts = np.unique(a, return_counts=True)
    place = np.searchsorted(b, values, side="right") - np.searchsorted(b, values)
    return np.asarray(values[counts > place], np.int64)


def _show(pairs: Ints) -> str:
    return ", ".join(f"{pair >> 32}->{pair & 0xFFFFFFFF}" for pair in pairs[:3].tolist()) or "none"
