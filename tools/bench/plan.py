"""What does planning cost a document, on one core, and how long does a kept plan take to open?

Only lengths are read. The reference is numpy's sort of the same lengths.
"""

from collections.abc import Callable

import numpy as np
from corpus import lengths_of, made
from harness import Contestant, Report, arguments, chosen, compare, machine, now, once, parse
from made_documents import MadeDocuments
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.packing.planner import pack_blocks
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies import STRATEGIES

SEQ_LEN, BLOCK = 2048, 65_536
SORT = "numpy sort"


def blocks(lengths: NDArray[np.int64], strategy: str, overlap: int = 0) -> Callable[[], float]:
    """Nanoseconds a document of packing every block."""
    settings = PackSettings.checked(seq_len=SEQ_LEN, strategy=strategy, overlap=overlap)  # type: ignore[arg-type]

    def work() -> float:
        bounds = np.append(np.arange(0, len(lengths), BLOCK), len(lengths))
        packed = once(lambda: [one.plan() for one in pack_blocks(lengths, bounds, settings)])
        return packed / len(lengths)

    return work


def whole(lengths: NDArray[np.int64], strategy: str) -> Callable[[], float]:
    """Nanoseconds a document of `pack`: dealing, packing, measuring."""
    documents = MadeDocuments(lengths.astype(np.uint32))
    return lambda: (
        once(lambda: jaxdata.pack(documents, seq_len=SEQ_LEN, strategy=strategy)) / len(lengths)
    )


def kept(given_data: object, quick: bool) -> Callable[[], float]:
    """Seconds of opening a dataset whose plan is kept in it."""
    corpus = made(given_data, quick=quick)  # type: ignore[arg-type]

    def open_and_pack() -> float:
        begin = now()
        documents = jaxdata.open_dataset(corpus.path).source("train", corpus.sources[0])
        jaxdata.pack(documents, seq_len=SEQ_LEN)
        return now() - begin

    open_and_pack()
    return open_and_pack


def padding(lengths: NDArray[np.int64]) -> Report:
    """Padding of every strategy, per cent of the slots."""
    report = Report("plan", f"Padding at {SEQ_LEN}", "per cent of slots", "less")
    documents = MadeDocuments(lengths.astype(np.uint32))
    for strategy in STRATEGIES:
        rows = jaxdata.pack(documents, seq_len=SEQ_LEN, strategy=strategy)
        dropped = rows.plan.dropped_tokens / int(lengths.sum())
        note = f"{dropped:.1%} of the tokens dropped" if dropped else ""
        report.add(strategy, 100 * (1 - rows.plan.fill), note=note)
    return report


def main() -> None:
    """Plan in turns."""
    given = parse(arguments(__doc__ or ""))
    lengths = lengths_of(3_000 if given.quick else 200_000)
    facts = machine() | {"documents": len(lengths), "seq_len": SEQ_LEN, "block": BLOCK}
    contestants = [
        Contestant(SORT, lambda: once(lambda: np.sort(lengths)) / len(lengths)),
        *(Contestant(f"plan, {name}", blocks(lengths, name), SORT) for name in STRATEGIES),
        Contestant("plan, best_fit, overlap 256", blocks(lengths, "best_fit", 256), SORT),
        *(Contestant(f"pack(), {name}", whole(lengths, name), SORT) for name in STRATEGIES),
    ]
    report = Report("plan", "Planning, one core", "ns a document", "less", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds, "timed": True}
    compare(report, chosen(contestants, given.only), scale=1e9, **turns)
    report.show(given.json)
    opened = Report("plan", "Opening a dataset and its kept plan", "ms", "less")
    work = kept(given.data, given.quick)
    opening = Contestant("open_dataset and pack", work)
    compare(opened, [opening], scale=1e3, **turns).show(given.json)
    padding(lengths).show(given.json)


if __name__ == "__main__":
    main()
