"""What a view keeps and drops of a source, in documents and tokens, as the manifest keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.manifest import Amount, ViewAccount
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
    return ViewAccount(
        source=Amount(documents=len(lengths), tokens=tokens),
        kept=Amount(
            documents=len(lengths) - len(dropped),
            tokens=tokens - sum(each.tokens for each in lost.values()),
        ),
        listed=listed,
        dropped=lost,
        masked=dict(_masked(view, columns)),
        loss_tokens=None if masked else listed.tokens - _without_loss(columns),
    )


def _masked(view: SourceView, columns: Columns) -> Iterator[tuple[str, Amount]]:
    if "mask_document" in columns:
        sizes = columns["mask_stop"].astype(np.int64) - columns["mask_start"]
        for reason, count, size in _by_reason(view, columns["mask_reason"], sizes):
            yield reason, Amount(ranges=count, tokens=size)


def _without_loss(columns: Columns) -> int:
    """Listed tokens without loss: the first of each document, and those in masked ranges."""
    found = len(columns["document"])
    if "mask_document" in columns:
        first, last = (
            np.searchsorted(columns["document"], columns["mask_document"], side)
            for side in ("left", "right")
        )
        targets = columns["mask_stop"].astype(np.int64) - np.maximum(columns["mask_start"], 1)
        found += int(((last - first) * np.maximum(targets, 0)).sum())
    return found


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
    for reason, masked in account.masked.items():
        yield f"masked {masked.tokens:,} tokens in {masked.ranges:,} ranges: {reason}"
