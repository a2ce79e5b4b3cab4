"""What a view keeps and drops of a source, in documents and tokens, as the manifest keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.views.contents import SourceView

_AT_ONCE = 2**24  # documents


def account_of(
    lengths: NDArray[np.uint32], view: SourceView, columns: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """The account of a view of documents of `lengths` tokens, from the columns to be written.

    `kept` counts each document once, `listed` as often as it is listed; `masked` are tokens of
    documents that are kept, each counted once.
    """
    dropped, reason = columns["dropped"], columns["reason"]
    listed = {
        "documents": len(columns["document"]),
        "tokens": int(columns["length"].sum(dtype=np.int64)),
    }
    lost = _by_reason(view, reason, lengths[dropped])
    tokens = int(lengths.sum(dtype=np.int64))
    kept = {
        "documents": len(lengths) - len(dropped),
        "tokens": tokens - sum(each["tokens"] for each in lost.values()),
    }
    found: dict[str, Any] = {
        "source": {"documents": len(lengths), "tokens": tokens},
        "kept": kept,
        "dropped": lost,
    }
    if listed != kept:
        found["listed"] = listed
    if "mask_document" in columns:
        sizes = columns["mask_stop"].astype(np.int64) - columns["mask_start"]
        masked = _by_reason(view, columns["mask_reason"], sizes)
        found["masked"] = {
            why: {"ranges": each["documents"], "tokens": each["tokens"]}
            for why, each in masked.items()
        }
    return found


def _by_reason(
    view: SourceView, reason: NDArray[Any], sizes: NDArray[Any]
) -> dict[str, dict[str, int]]:
    """How many things there are for each reason, and their tokens."""
    counts = np.bincount(reason, minlength=len(view.reasons))
    tokens = [int(sizes[reason == number].sum(dtype=np.int64)) for number in range(len(counts))]
    named = zip(view.reasons, counts.tolist(), tokens, strict=True)
    return {name: {"documents": n, "tokens": t} for name, n, t in named if n}


def account_lines(account: Mapping[str, Any]) -> Iterator[str]:
    """An account in words, a line for what is kept, and one for each reason."""
    source, kept = account["source"], account["kept"]
    share = 100 * kept["tokens"] / max(source["tokens"], 1)
    yield (
        f"kept {kept['documents']:,} of {source['documents']:,} documents, {kept['tokens']:,} of "
        f"{source['tokens']:,} tokens ({share:.2f} %)"
    )
    if "listed" in account:
        listed = account["listed"]
        yield f"listed {listed['documents']:,} times, {listed['tokens']:,} tokens an epoch"
    for reason, lost in account["dropped"].items():
        yield f"dropped {lost['documents']:,} documents, {lost['tokens']:,} tokens: {reason}"
    for reason, masked in account.get("masked", {}).items():
        yield f"masked {masked['tokens']:,} tokens in {masked['ranges']:,} ranges: {reason}"
