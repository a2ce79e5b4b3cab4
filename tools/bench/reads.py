"""What does a batch read: how many ranges and bytes, and how far apart do they lie?

With runs of neighbouring documents (``shuffle_run``) ranges lie closer together, and ranges that
touch the same page of 4 KiB, or the next one, become one read of a disk. The reference is the
crops of nanoGPT: two ranges a row.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
from corpus import Corpus, made
from harness import Line, Report, arguments, machine, parse
from numpy.typing import NDArray

import jaxdata
from jaxdata.format.storage import LocalStore

SEQ_LEN, BATCH = 2048, 64
RUNS = (1, 4, 16, 64, 256, 4096)
PAGE = 4096
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

    def gather(
        self, names: Any, file: Ints, start: Ints, count: Ints, dtype: np.dtype[Any]
    ) -> list[NDArray[Any]]:
        """See ``Store``."""
        wanted = count > 0
        size = count * dtype.itemsize
        self.ranges.append((file[wanted], start[wanted], (start + size)[wanted]))
        return super().gather(names, file, start, count, dtype)


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


def watch(corpus: Corpus, run: int, batches: int) -> list[dict[str, float]]:
    """What each of some batches of an epoch reads."""
    dataset = jaxdata.open_dataset(corpus.path)
    documents = dataset.source("train", corpus.sources[0])
    store = documents.store = Watched(str(corpus.path))
    rows = jaxdata.pack(documents, seq_len=SEQ_LEN, shuffle_run=run)
    loader = jaxdata.Loader(rows, batch_size=BATCH, shard=(0, 1), prefetch=0)
    next(loader)
    found = []
    for _ in range(min(batches, len(loader) - 1)):
        store.ranges.clear()
        next(loader)
        found.append(pages(store.ranges))
    return found


def crops(corpus: Corpus, batches: int) -> list[dict[str, float]]:
    """What crops read."""
    order = np.random.default_rng(0)
    file = np.zeros(BATCH, np.int64)
    found = []
    for _ in range(batches):
        start = order.integers(0, corpus.tokens - SEQ_LEN - 1, BATCH) * 2
        both = [(file, start + shift, start + shift + 2 * SEQ_LEN) for shift in (0, 2)]
        found.append(pages(both))
    return found


def main() -> None:
    """Watch an epoch's batches for each length of run."""
    given = parse(arguments(__doc__ or ""))
    corpus = made(given.data, quick=given.quick)
    batches = 5 if given.quick else 100
    facts = machine() | {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("reads", "Reads of a batch", "as said", "less", facts=facts)
    watched = {"memmap crops": crops(corpus, batches)}
    for run in RUNS[: 2 if given.quick else None]:
        watched[f"shuffle_run {run}"] = watch(corpus, run, batches)
    reference = {name: fmean(one[name] for one in watched["memmap crops"]) for name in FIGURES}
    for name, found in watched.items():
        for what in FIGURES:
            figures = [one[what] for one in found]
            ratios = [figure / reference[what] for figure in figures]
            report.lines.append(Line(f"{name}: {what}", figures, f"memmap crops: {what}", ratios))
    report.show(given.json)


if __name__ == "__main__":
    main()
