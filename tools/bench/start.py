"""How long from opening a dataset to the first batch, imports aside?

The reference is what has least to do: mapping the flat file and taking one batch of crops.
"""

import shutil
from collections.abc import Callable

import numpy as np
from corpus import Corpus, made
from harness import Contestant, Report, arguments, chosen, compare, machine, now, parse

import jaxdata

SEQ_LEN, BATCH = 2048, 64
MEMMAP = "memmap, first crops"


def start(corpus: Corpus, *, planned: bool) -> Callable[[], float]:
    """Seconds from `open_dataset` to the first batch, the plan kept or not."""

    def work() -> float:
        if not planned:
            shutil.rmtree(corpus.path / "plans", ignore_errors=True)
        begin = now()
        first_batch(rows_of(corpus))
        return now() - begin

    return work


def configured(corpus: Corpus, *, planned: bool) -> Callable[[], float]:
    """Seconds of `jaxdata.load` from a mapping, and the first batch, without a mesh."""
    config = {
        "dataset": str(corpus.path),
        "pack": {"seq_len": SEQ_LEN},
        "loader": {"batch_size": BATCH, "prefetch": 0},
    }

    def work() -> float:
        if not planned:
            shutil.rmtree(corpus.path / "plans", ignore_errors=True)
        begin = now()
        next(jaxdata.load(config))
        return now() - begin

    return work


def second(corpus: Corpus) -> Callable[[], float]:
    """Seconds of another Loader over rows that are in use, and its first batch."""
    rows = rows_of(corpus)
    first_batch(rows)

    def work() -> float:
        begin = now()
        first_batch(rows)
        return now() - begin

    return work


def rows_of(corpus: Corpus) -> object:
    """Open the dataset and pack its source."""
    documents = jaxdata.open_dataset(corpus.path).source("train", corpus.sources[0])
    return jaxdata.pack(documents, seq_len=SEQ_LEN)


def first_batch(rows: object) -> None:
    """Make a Loader and take one batch."""
    next(jaxdata.Loader(rows, batch_size=BATCH, shard=(0, 1), prefetch=0))


def memmap(corpus: Corpus) -> Callable[[], float]:
    """Seconds of mapping the flat file and one batch of crops."""

    def work() -> float:
        begin = now()
        flat = corpus.flat
        starts = np.random.default_rng(0).integers(0, len(flat) - SEQ_LEN - 1, BATCH).tolist()
        np.stack([flat[i : i + SEQ_LEN].astype(np.int32) for i in starts])
        np.stack([flat[i + 1 : i + 1 + SEQ_LEN].astype(np.int32) for i in starts])
        return now() - begin

    return work


def main() -> None:
    """Start in turns."""
    given = parse(arguments(__doc__ or ""))
    corpus = made(given.data, quick=given.quick)
    contestants = [
        Contestant(MEMMAP, memmap(corpus)),
        Contestant("open, pack, Loader; plan made", start(corpus, planned=False), MEMMAP),
        Contestant("open, pack, Loader; plan kept", start(corpus, planned=True), MEMMAP),
        Contestant("jaxdata.load(config); plan made", configured(corpus, planned=False), MEMMAP),
        Contestant("jaxdata.load(config); plan kept", configured(corpus, planned=True), MEMMAP),
        Contestant("a second Loader over the same rows", second(corpus), MEMMAP),
    ]
    facts = machine("jax", "grain") | {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("start", "To the first batch", "ms", "less", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds, "timed": True}
    compare(report, chosen(contestants, given.only), scale=1e3, **turns).show(given.json)


if __name__ == "__main__":
    main()
