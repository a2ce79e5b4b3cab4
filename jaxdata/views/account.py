"""What a view keeps and drops of a source, in documents and tokens, as the manifest keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.manifest import Amount, ViewAccount
from jaxdata.format.views import Kind
from jaxdata.views.source_view import SourceView

Columns = Mapping[str, NDArray[Any]]


def account_of(
    lengths: NDArray[np.uint32], view: SourceView, columns: Columns, *, masked: bool
) -> ViewAccount:
    """The account of a view of documents of `lengths` tokens, from the columns to be written.

    `masked` says whether the source has loss masks of its own.
    """
    dropped = columns["dropped"]
    tokens = int(lengths.sum(dtype=np.int64))
    listed = Amount(
        documents=len(columns["document"]), tokens=int(columns["length"].sum(dtype=np.int64))
    )
    lost = {
        reason: Amount(documents=count, tokens=size)
        for reason, count, size in _by_reason(view, columns["reason"], lengths[dropped])
    }
    cut = dict(_ranges(view, columns, "cut"))
    return ViewAccount(
        source=Amount(documents=len(lengths), tokens=tokens),
        kept=Amount(
            documents=len(lengths) - len(dropped),
            tokens=tokens - sum(each.tokens for each in (*lost.values(), *cut.values())),
        ),
        listed=listed,
        dropped=lost,
        masked=dict(_ranges(view, columns, "mask")),
        cut=cut,
        loss_tokens=None if masked else listed.tokens - _without_loss(columns),
    )


def _ranges(view: SourceView, columns: Columns, kind: Kind) -> Iterator[tuple[str, Amount]]:
    """Ranges of a kind by reason."""
    if f"{kind}_document" in columns:
        sizes = columns[f"{kind}_stop"].astype(np.int64) - columns[f"{kind}_start"]
        for reason, count, size in _by_reason(view, columns[f"{kind}_reason"], sizes):
            yield reason, Amount(ranges=count, tokens=size)


def _without_loss(columns: Columns) -> int:
    """Listed tokens without loss: the first of each document, and those in masked ranges."""
    listed = columns["document"]
    if "mask_document" not in columns:
        return len(listed)
    masked, begin = columns["mask_document"], np.zeros(1, np.int64)
    if "start" in columns:
        begin = columns["start"].astype(np.int64)
        listed = listed.astype(np.int64) << 32 | begin
        masked = masked.astype(np.int64) << 32 | columns["mask_start"]
    last = np.searchsorted(listed, masked, "right")
    first = np.searchsorted(listed, listed[last - 1])
    first_token = begin.take(last - 1, mode="clip")
    targets = columns["mask_stop"].astype(np.int64) - np.maximum(
        columns["mask_start"], first_token + 1
    )
    return len(listed) + int(((last - first) * np.maximum(targets, 0)).sum())


def _by_reason(
    view: SourceView, reason: NDArray[Any], sizes: NDArray[Any]
) -> Iterator[tuple[str, int, int]]:
    """Each reason that occurs, how often, and the sum of the sizes there."""
    for number, name in enumerate(view.reasons):
        mine = reason == number
        if count := int(mine.sum()):
            yield name, count, int(sizes[mine].sum(dtype=np.int64))


def account_lines(account: ViewAccount) -> Iterator[str]:
    """An account in words, a line for what is kept, and one for each reason."""
    source, kept, listed = account.source, account.kept, account.listed
    share = 100 * kept.tokens / max(source.tokens, 1)
    yield (
        f"kept {kept.documents:,} of {source.documents:,} documents, {kept.tokens:,} of "
        f"{source.tokens:,} tokens ({share:.2f} %)"
    )
    if listed != kept:
        yield f"listed as {listed.documents:,} documents with {listed.tokens:,} tokens an epoch"
    for reason, lost in account.dropped.items():
        yield f"dropped {lost.documents:,} documents, {lost.tokens:,} tokens: {reason}"
    for done, ranges in (("masked", account.masked), ("cut out", account.cut)):
        for reason, amount in ranges.items():
            yield f"{done} {amount.tokens:,} tokens in {amount.ranges:,} ranges: {reason}"
