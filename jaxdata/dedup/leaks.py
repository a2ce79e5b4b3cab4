"""Whether what is held out is trained, too: by views, or token for token before a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.base.hashing import exact_hashes
from jaxdata.base.ragged import Ints
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import KeptDocuments

MOST_TOKENS = 2**28
"""that are read: 5 s for documents of 1,000 tokens on a local disk, 35 s for those of 100"""
_AT_ONCE = 2**22  # tokens


def _remedy(split: str) -> str:
    return f"jaxdata dedup DATASET --against {split} --output-name d1, then documents: d1"


def exact_leaks(
    dataset: Dataset, trained: Sequence[str], held_out: Sequence[str], most: int = MOST_TOKENS
) -> tuple[str, list[str]]:
    """Look for held-out documents with the tokens of a trained one; names are `"<split>/<source>"`.

    Exact: 128-bit hashes of all tokens are compared. Of what is trained only documents with the
    length of a held-out one are read, and none of a single token; nothing is read if that makes
    more than `most` tokens. Views through which the dataset is read apply.

    Returns:
        "leaks", "unknown" where nothing was read, or ""; and the result in words, and what to do.
    """
    held = {name: dataset[name] for name in held_out}
    lengths = np.unique(
        np.concatenate([np.empty(0, np.int64), *(d.lengths for d in held.values())])
    )
    read = {name: _of_lengths(dataset[name], lengths[lengths > 1]) for name in [*held, *trained]}
    tokens = sum(int(dataset[n].lengths[of].sum(dtype=np.int64)) for n, of in read.items())
    ours, scored = (names[0].partition("/")[0] for names in (trained, held_out))
    if tokens > most:
        return "unknown", [
            f"not looked for: that would read {tokens:,} tokens, and this check reads up to "
            f"{most:,}. To find and leave out exact and near copies: {_remedy(scored)}"
        ]
    times = Counter(each for name in held for each in _hashes(held[name], read[name]))
    shared = {n: times.keys() & {*_hashes(dataset[n], read[n])} for n in trained}
    leaked = sum(times[each] for each in set[bytes]().union(*shared.values()))
    documents = counted(sum(len(each) for each in held.values()), "document")
    lines = [
        f"{leaked:,} of {documents} of {scored} are also in {ours} (exact; {tokens:,} tokens read; "
        "near copies were not looked for)"
    ]
    if leaked:
        of_each = {n: sum(times[each] for each in some) for n, some in shared.items() if some}
        lines.append(", ".join(f"{count:,} in {name}" for name, count in of_each.items()))
        lines.append(f"to leave them out: {_remedy(scored)}")
    return "leaks" if leaked else "", lines


def _of_lengths(documents: Documents, lengths: Ints) -> Ints:
    """The documents that have one of these lengths."""
    return np.flatnonzero(np.isin(documents.lengths, lengths))


def _hashes(documents: Documents, numbers: Ints) -> Iterator[bytes]:
    """128 bits of the tokens of some documents, read a few at a time."""
    if not len(numbers):
        return
    dtype = documents.dtype.newbyteorder("<")
    parts = np.cumsum(documents.lengths[numbers], dtype=np.int64) // _AT_ONCE
    for some in np.split(numbers, np.flatnonzero(np.diff(parts)) + 1):
        counts = documents.lengths[some].astype(np.int64)
        joined = documents.tokens(some, np.zeros_like(counts), counts).views.join()
        tokens = np.frombuffer(joined, dtype).astype("<u4").tobytes()
        ends = (4 * np.cumsum(counts)).tolist()
        ids = [tokens[start:stop] for start, stop in pairwise([0, *ends])]
        yield from map(bytes, exact_hashes(ids).view("V16").ravel().tolist())


def leak_notes(dataset: Dataset, trained: Sequence[str], held_out: Sequence[str]) -> list[str]:
    """A line on the sources that were compared with those held out, and one on the others.

    Names are `"<split>/<source>"`. Nothing is read but the manifest: a view of `jaxdata dedup`
    knows the fingerprints of what it was made against, also beneath views that were made of it.
    """
    prints = {dataset[name].fingerprint: name for name in held_out}
    compared: dict[str, list[str]] = {}
    for name in trained:
        known = {print for view in _searches(dataset[name]) for print in _against(view)}
        lacking = ", ".join(sorted(prints[each] for each in prints.keys() - known))
        compared.setdefault(lacking, []).append(name)
    notes = []
    for lacking, names in sorted(compared.items()):
        note = f"copies of {', '.join(held_out)} are left out, by its view"
        if lacking:
            note = (
                f"never compared with {lacking}, so copies of it may be trained. To leave them "
                f"out: {_remedy(lacking.partition('/')[0])}; whether there are exact ones: "
                "jaxdata preview --leaks"
            )
        notes.append(f"{', '.join(names)}: {note}")
    return notes


def _searches(docs: Any) -> Iterator[dict[str, Any]]:
    """The parameters of the views that documents are read through, those below them too."""
    if not isinstance(docs, KeptDocuments):
        return
    views: dict[str, Any] = docs.base.entry.views if docs.base.entry else {}
    view, passed = views.get(docs.view.name), set[str]()
    while view is not None:
        yield view.parameters
        below = view.parameters.get("documents")
        view = None if below in passed else views.get(below)
        passed.add(str(below))


def _against(parameters: dict[str, Any]) -> Iterator[str]:
    """The fingerprints of the sources that a search compared with."""
    if parameters.get("command") == "dedup":
        for name in parameters.get("against", []):
            yield from parameters.get("sides", {}).get(name, [])
