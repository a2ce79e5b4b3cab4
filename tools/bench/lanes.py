"""What do chunks and lanes cost a run that reads from its own disk?

The loader side by side, page cache warm; batches of 8,192 rows at 1,024 sources; planning; memory
of plans. Chunks and blocks are smaller than by default, so that the corpus has one block a lane.
"""

from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from corpus import lengths_of, made
from harness import Contestant, Report, arguments, chosen, compare, machine, once, parse
from load import BATCH, SEQ_LEN, ours, rows_of
from made_documents import MadeDocuments

import jaxdata
from jaxdata.rows.packing.planner import PLANS

ONE_LANE, DEFAULT = "chunks, 1 lane", "documents"
LANES = (64, 512)
SMALL = {"chunk_bytes": 2**16, "block_bytes": 2**19}
SMALLER = {"chunk_bytes": 2**14, "block_bytes": 2**17}  # of 1,024 sources of 26 MB
OPEN = 512
LARGE = {"chunk_bytes": 2**20, "block_bytes": 2**23, "lanes": OPEN}
HOSTS = 64
TOGETHER, QUICK_TOGETHER = 128, 8  # as many batches as a host prepares together
NO_END = 2**22


def orders(chunks: dict[str, int]) -> dict[str, dict[str, int]]:
    """Settings of `pack` by name."""
    found = {DEFAULT: {}, ONE_LANE: {**chunks, "lanes": 1}}
    return found | {f"chunks, {lanes} lanes": {**chunks, "lanes": lanes} for lanes in LANES}


def loading(given: Namespace) -> Report:
    """Tokens a second of the loader, side by side."""
    corpus = made(given.data, quick=given.quick)
    contestants = [
        Contestant(name, ours(rows_of(corpus, **pack)), ONE_LANE if "lanes" in pack else DEFAULT)
        for name, pack in orders(SMALL).items()
    ]
    facts = machine() | {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"} | SMALL
    report = Report("lanes", "Loading, page cache warm", "million tokens a second", facts=facts)
    return compare(report, chosen(contestants, given.only), scale=1e-6, **turns(given))


def mixture(sources: int, documents: int, pack: dict[str, Any]) -> Any:
    """Many sources of log-normal weights, epoch after epoch; their tokens are stubs."""
    lengths = lengths_of(documents).astype(np.uint32)
    rows = {
        f"s{number}": jaxdata.pack(
            MadeDocuments(lengths, name=f"train/s{number}"), seq_len=SEQ_LEN, **pack
        )
        for number in range(sources)
    }
    drawn = np.random.default_rng(0).lognormal(0, 1, sources)
    phase = jaxdata.Phase(rows=NO_END, weights=dict(zip(rows, drawn.tolist(), strict=True)))
    return jaxdata.mix(rows, phases=[phase], epochs=dict.fromkeys(rows, NO_END))


def batches(rows: Any, batch_size: int, count: int = TOGETHER) -> Callable[[], float]:
    """Seconds a batch of some in a row: they may be prepared together."""
    loader = jaxdata.Loader(rows, batch_size=batch_size, shard=(0, HOSTS), prefetch=0)

    def work() -> float:
        if loader.next_row + count * batch_size > NO_END:
            loader.reset()
        return once(lambda: list(islice(loader, count))) / count

    return work


def first_batch(rows: Any, batch_size: int) -> Callable[[], float]:
    """Seconds that a new loader over the same rows takes for one batch; plans are in memory."""

    def work() -> float:
        loader = jaxdata.Loader(rows, batch_size=batch_size, shard=(0, HOSTS), prefetch=0)
        return once(lambda: next(loader))

    return work


def many_sources(given: Namespace) -> Report:
    """Milliseconds a batch of one of many hosts."""
    sources, documents, batch = (16, 1_000, 512) if given.quick else (1_024, 20_000, 8_192)
    count = QUICK_TOGETHER if given.quick else TOGETHER
    contestants = []
    for name, pack in orders(SMALLER).items():
        if name == f"chunks, {OPEN} lanes":
            continue  # a lane of 200 blocks would have less than one
        rows = mixture(sources, documents, pack)
        contestants.append(Contestant(name, batches(rows, batch, count), DEFAULT))
        first = f"{name}: first batch"
        contestants.append(Contestant(first, first_batch(rows, batch), f"{DEFAULT}: first batch"))
    facts = machine() | {"sources": sources, "documents of each": documents, "hosts": HOSTS}
    question = f"A batch of {batch:,} rows of {sources:,} sources, on one of {HOSTS} hosts"
    report = Report("lanes", question, "ms", "less", facts=facts | SMALLER)
    picked = chosen(contestants, given.only)
    return compare(report, picked, scale=1e3, timed=True, **turns(given))


def planning(given: Namespace) -> Report:
    """Nanoseconds a document of `pack`."""
    lengths = lengths_of(3_000 if given.quick else 200_000).astype(np.uint32)
    documents = MadeDocuments(lengths)

    def plan(**pack: Any) -> Callable[[], float]:
        return lambda: once(lambda: jaxdata.pack(documents, seq_len=SEQ_LEN, **pack)) / len(lengths)

    contestants = [
        Contestant("planning, documents", plan()),
        Contestant("planning, chunks", plan(**LARGE), "planning, documents"),
    ]
    facts = machine() | {"documents": len(lengths), "seq_len": SEQ_LEN} | LARGE
    report = Report("lanes", "Planning, one core", "ns a document", "less", facts=facts)
    picked = chosen(contestants, given.only)
    return compare(report, picked, scale=1e9, timed=True, **turns(given))


def memory(given: Namespace) -> Report:
    """Bytes of plans that are kept in memory."""
    lengths = lengths_of(3_000 if given.quick else 200_000).astype(np.uint32)
    report = Report("lanes", "Plans in memory", "MB", "less", facts={"documents": len(lengths)})
    for name, pack in (("a block of 65,536 documents", {}), ("8 MiB of chunks", LARGE)):
        table = jaxdata.pack(MadeDocuments(lengths), seq_len=SEQ_LEN, **pack).table
        before = PLANS.nbytes
        table.segments(np.arange(len(table)))
        kept = PLANS.nbytes - before
        note = f"{kept / len(lengths):.3g} bytes a document"
        report.add(f"plan of {name}", kept / table.blocks / 1e6, note=note)
    report.add(f"plans of {OPEN} open blocks", OPEN * kept / table.blocks / 1e6)
    report.add("most, of all sources", PLANS.most / 1e6, note="an eighth of the memory")
    return report


def turns(given: Namespace) -> dict[str, Any]:
    """How long contestants take turns."""
    return {"rounds": given.rounds, "seconds": given.seconds}


def main() -> None:
    """Each question after the other, so that plans of one do not crowd out those of the next."""
    given = parse(arguments(__doc__ or ""))
    for question in (loading, many_sources, planning, memory):
        question(given).show(given.json)


if __name__ == "__main__":
    main()
