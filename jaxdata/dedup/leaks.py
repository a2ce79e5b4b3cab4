"""Whether what is held out is trained, too: by views, or token for token before a run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.base.hashing import exact_hashes
from jaxdata.base.ragged import Ints
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.dataset.views.kept_documents import KeptDocuments

MOST_TOKENS = 2**28
"""that are read: 5 s for documents of 1,000 tokens on a local disk, 35 s for those of 100"""
_AT_ONCE = 2**22  # tokens


@dataclass(frozen=True)
class ExactLeaks:
    """What is held out, and how much of it is trained.

    Attributes:
        read: tokens that were read, or would have to be.
        most: tokens that may be read; with more, nothing was compared.
        splits: what is trained, and what is held out.
        held_out: documents that are held out.
        leaked: of these, how many are trained.
        by_source: `"<split>/<source>"` that is trained -> how many of them it has.
        remedy: the command that leaves them out.
    """

    read: int
    most: int
    splits: tuple[str, str]
    held_out: int
    remedy: str
    leaked: int = 0
    by_source: Mapping[str, int] = field(default_factory=dict)

    @property
    def compared(self) -> bool:
        """Whether documents were read."""
        return self.read <= self.most

    def lines(self) -> Iterator[str]:
        """The result in words, and what to do."""
        if not self.compared:
            yield (
                f"not looked for: that would read {self.read:,} tokens, and this check reads up "
                f"to {self.most:,}. To find and leave out exact and near copies: {self.remedy}"
            )
            return
        trained, scored = self.splits
        yield (
            f"{self.leaked:,} of {counted(self.held_out, 'document')} of {scored} are also in "
            f"{trained} (exact; {self.read:,} tokens read; near copies were not looked for)"
        )
        if self.leaked:
            yield ", ".join(f"{count:,} in {name}" for name, count in self.by_source.items())
            yield f"to leave them out: {self.remedy}"


def exact_leaks(
    dataset: Dataset, trained: Sequence[str], held_out: Sequence[str], most: int = MOST_TOKENS
) -> ExactLeaks:
    """Look for held-out documents with the tokens of a trained one; names are `"<split>/<source>"`.

    Exact: 128-bit hashes of all tokens are compared. Of what is trained only documents with the
    length of a held-out one are read, and none of a single token; nothing is read if that makes
    more than `most` tokens. Views through which the dataset is read apply.
    """
    held = {name: dataset[name] for name in held_out}
    lengths = np.unique(
        np.concatenate([np.empty(0, np.int64), *(d.lengths for d in held.values())])
    )
    read = {name: _of_lengths(dataset[name], lengths[lengths > 1]) for name in [*held, *trained]}
    tokens = sum(int(dataset[n].lengths[of].sum(dtype=np.int64)) for n, of in read.items())
    found = ExactLeaks(
        read=tokens,
        most=most,
        splits=(trained[0].partition("/")[0], held_out[0].partition("/")[0]),
        held_out=sum(len(each) for each in held.values()),
        remedy=_remedy(dataset, trained, held_out),
    )
    if not found.compared:
        return found
    times = Counter(each for name in held for each in _hashes(held[name], read[name]))
    shared = {n: times.keys() & {*_hashes(dataset[n], read[n])} for n in trained}
    by_source = {n: sum(times[each] for each in some) for n, some in shared.items() if some}
    return replace(
        found,
        remedy=_remedy(dataset, [*by_source] or trained, held_out),
        leaked=sum(times[each] for each in set[bytes]().union(*shared.values())),
        by_source=by_source,
    )


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


def _remedy(dataset: Dataset, trained: Sequence[str], held_out: Sequence[str]) -> str:
    """The command that leaves copies out, and what to do then."""
    place = dataset.url if isinstance(dataset, ConvertedDataset) else "DATASET"
    split = trained[0].partition("/")[0]
    views = {dataset.views.get(name) for name in trained}
    below = views.pop() if len(views) == 1 else None
    words = ["jaxdata", "dedup", place, *(["--split", split] if split != "train" else [])]
    words += ["--sources", ",".join(name.partition("/")[2] for name in trained)]
    words += ["--against", held_out[0].partition("/")[0]]
    words += ["--documents", below] if below else []
    name = "d2" if below == "d1" else "d1"
    return f"{shlex.join([*words, '--output-name', name])}, then documents: {name}"


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
    return [_line(lacking, names, held_out) for lacking, names in sorted(compared.items())]


def _line(lacking: str, names: Sequence[str], held_out: Sequence[str]) -> str:
    what = ", ".join(names)
    if not lacking:
        return f"{what}: copies of {', '.join(held_out)} are left out, by its view"
    split = lacking.partition("/")[0]
    return (
        f"{what}: never compared with {lacking}, so copies of it may be trained. To leave them "
        f"out: jaxdata dedup DATASET --against {split} --output-name d1, then documents: d1; "
        "whether there are exact ones: jaxdata preview --leaks"
    )


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
