"""What does a batch read: how many ranges and bytes, and how far apart do they lie?

With runs of neighbouring documents (`shuffle_run`) ranges lie closer together, and ranges that
touch the same page of 4 KiB, or the next one, become one read of a disk. The reference is the
crops of nanoGPT: two ranges a row. The second table is for a reader that would fetch many batches
at once: there runs pay, as a block's rows lie in a shuffled order, but its documents together.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from corpus import Corpus, made
from harness import Line, Report, arguments, machine, parse
from numpy.typing import NDArray

import jaxdata
from jaxdata.format.storage import LocalStore
from jaxdata.ragged import ByteRanges
from jaxdata.rows.arrays import assemble

SEQ_LEN, BATCH = 2048, 64
RUNS = (1, 4, 16, 64, 256, 4096)
PAGE = 4096
CROPS = "memmap crops"
FIGURES = (
    "ranges",
    "reads, neighbouring pages merged",
    "kilobytes of ranges",
    "kilobytes of pages",
    "shards",
)
Ints = NDArray[np.int64]


class Watched(LocalStore):
    """A folder that notes which ranges are read of which file."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.ranges: list[tuple[Ints, Ints, Ints]] = []

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """See `Store`."""
        wanted = stop > start
        self.ranges.append((file[wanted], start[wanted], stop[wanted]))
        return super().gather(names, file, start, stop)


def pages(ranges: list[tuple[Ints, Ints, Ints]]) -> dict[str, float]:
    """Ranges, their bytes, and the runs of neighbouring pages that hold them."""
    file, start, stop = (np.concatenate(column) for column in zip(*ranges, strict=True))
    first, last = start // PAGE, (stop - 1) // PAGE
    order = np.lexsort((first, file))
    file, first, last = file[order], first[order], last[order]
    reach = np.maximum.accumulate(last + (file << 40)) - (file << 40)
    new = np.ones(len(first), bool)
    new[1:] = (first[1:] > reach[:-1] + 1) | (file[1:] != file[:-1])
    touched = np.unique(
        np.concatenate(
            [
                np.arange(a, b + 1) + (f << 40)
                for f, a, b in zip(file.tolist(), first.tolist(), last.tolist(), strict=True)
            ]
        )
    )
    size, whole = float((stop - start).sum()) / 1e3, len(touched) * PAGE / 1e3
    figures = float(len(start)), float(new.sum()), size, whole, float(len(np.unique(file)))
    return dict(zip(FIGURES, figures, strict=True))


def watch(corpus: Corpus, run: int, batches: int) -> list[list[Any]]:
    """The ranges that each of some batches reads, from the beginning of an epoch."""
    documents = jaxdata.open_dataset(corpus.path).source("train", corpus.sources[0])
    store = documents.store = Watched(str(corpus.path))
    table = jaxdata.pack(documents, seq_len=SEQ_LEN, order=1, shuffle_run=run).table
    found = []
    for batch in range(min(batches, len(table) // BATCH)):
        store.ranges.clear()
        wanted = np.arange(batch * BATCH, (batch + 1) * BATCH)
        next(iter(assemble(table, [wanted], BATCH)))
        found.append(list(store.ranges))
    return found


def crops(corpus: Corpus, batches: int) -> list[list[Any]]:
    """The ranges of crops."""
    order = np.random.default_rng(0)
    file = np.zeros(BATCH, np.int64)
    found = []
    for _ in range(batches):
        start = order.integers(0, corpus.tokens - SEQ_LEN - 1, BATCH) * 2
        found.append([(file, start + shift, start + shift + 2 * SEQ_LEN) for shift in (0, 2)])
    return found


def main() -> None:
    """Watch the first batches of an epoch for each length of run."""
    given = parse(arguments(__doc__ or ""))
    corpus = made(given.data, quick=given.quick)
    batches = 5 if given.quick else 300
    facts = machine() | {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    watched = {CROPS: crops(corpus, batches)}
    for run in RUNS[: 2 if given.quick else None]:
        watched[f"shuffle_run {run}"] = watch(corpus, run, batches)
    each = {name: [pages(ranges) for ranges in found] for name, found in watched.items()}
    show("a batch", each, facts, given.json)
    whole = {name: [_together(found)] for name, found in watched.items()}
    show(f"{batches} batches read as one, a batch", whole, facts, given.json)


def _together(found: list[list[Any]]) -> dict[str, float]:
    """What the batches would read if their ranges were sorted and merged, a batch."""
    figures = pages([span for ranges in found for span in ranges])
    return {name: figure / len(found) for name, figure in figures.items()}


def show(
    scope: str, found: dict[str, list[dict[str, float]]], facts: dict[str, Any], as_json: bool
) -> None:
    """A table of all figures of one scope."""
    report = Report("reads", f"Reads of {scope}", "as said", "less", facts=facts)
    for name, figures in found.items():
        for what in FIGURES:
            own = [one[what] for one in figures]
            reference = fmean(one[what] for one in found[CROPS])
            ratios = [figure / reference for figure in own]
            report.lines.append(Line(f"{name}: {what}", own, f"{CROPS}: {what}", ratios))
    report.show(as_json)


if __name__ == "__main__":
    main()
