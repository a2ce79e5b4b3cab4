"""What do rows that mix lengths cost, of single documents and of chunks, and how good are they?

`pack` of the same documents dealt one by one and by chunks, in turns; and of each its padding and
how well it mixes. Asked for is 0.1 per cent of padding in blocks of documents and 0.3 in blocks of
chunks, twice as many equal neighbours and 1.5 times the variance of a random order. Documents are
drawn from real lengths, where there are any. Other users of the machine disturb less with `--clock
cpu`.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from corpus import lengths_of, lengths_of_text
from harness import Contestant, Report, arguments, chosen, compare, machine, once, parse
from made_documents import MadeDocuments
from numpy.typing import NDArray
from shuffle import REAL, chosen as figures_of

import jaxdata
from jaxdata.testing import shuffle_quality

SEQ_LEN, BATCH = 2048, 64
DOCUMENTS, QUICK_DOCUMENTS = 200_000, 3_000
CHUNKS = {"chunk_bytes": 2**20, "block_bytes": 2**23}
QUICK_CHUNKS = {"chunk_bytes": 2**16, "block_bytes": 2**19}
FIGURES = {
    "padding": ("Padding", "per cent of the slots"),
    "equal": ("Neighbours in a row of equal length", "times as many as at random"),
    "length": ("Variance of the mean log length of batches", "times that of a random deal"),
}
"""figure -> its question and unit"""


def ways(quick: bool) -> dict[str, dict[str, int]]:
    """Settings of `pack` by name."""
    return {"documents": {}, "chunks": QUICK_CHUNKS if quick else CHUNKS}


def corpora(quick: bool) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Names, and lengths of documents."""
    if quick:
        yield "log-normal", lengths_of(QUICK_DOCUMENTS).astype(np.uint32)
        return
    for name in REAL:
        if (some := lengths_of_text(name)) is not None:
            drawn = np.random.default_rng(0).choice(some, DOCUMENTS)
            yield name, drawn.astype(np.uint32)
    yield "log-normal", lengths_of(DOCUMENTS).astype(np.uint32)


def planning(documents: MadeDocuments, pack: dict[str, Any]) -> Callable[[], float]:
    """Seconds a document of `pack`."""
    return lambda: once(lambda: jaxdata.pack(documents, seq_len=SEQ_LEN, **pack)) / len(documents)


def quality(documents: MadeDocuments, pack: dict[str, Any], seeds: int) -> dict[str, list[float]]:
    """The figures of some seeds."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(seeds):
        rows = jaxdata.pack(documents, seq_len=SEQ_LEN, seed=seed, **pack)
        found["padding"].append(100 * (1 - rows.plan.fill))
        (mixed,) = shuffle_quality(rows, batch_size=BATCH, hosts=1, seed=seed)
        for name, figure in figures_of(mixed.figures).items():
            if name in found:
                found[name].append(figure)
    return found


def planned(given: Namespace, corpus: str, documents: MadeDocuments) -> list[Contestant]:
    """Planning a corpus in every way."""
    first = f"{corpus}: documents"
    return [
        Contestant(
            f"{corpus}: {way}", planning(documents, pack), None if way == "documents" else first
        )
        for way, pack in ways(given.quick).items()
    ]


def reports(given: Namespace) -> Iterator[Report]:
    """Times, then a report for each of the other figures."""
    facts = machine() | {"seq_len": SEQ_LEN, "batch": BATCH}
    others = {
        name: Report("orders", question, unit, "less", facts=facts)
        for name, (question, unit) in FIGURES.items()
    }
    contestants = list[Contestant]()
    for corpus, lengths in corpora(given.quick):
        documents = MadeDocuments(lengths)
        contestants += planned(given, corpus, documents)
        for way, pack in ways(given.quick).items():
            if given.only and given.only not in f"{corpus}: {way}":
                continue
            for figure, values in quality(documents, pack, min(given.rounds, 3)).items():
                if values:
                    others[figure].add(f"{corpus}: {way}", *values)
    report = Report("orders", "Planning, one core", "ns a document", "less", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds, "timed": True}
    yield compare(report, chosen(contestants, given.only), scale=1e9, **turns)
    yield from (other for other in others.values() if other.lines)


def main() -> None:
    """Plan in turns."""
    given = parse(arguments(__doc__ or ""))
    for report in reports(given):
        report.show(given.json)


if __name__ == "__main__":
    main()
