"""What does balance cost: the rate of one of 8, or of 64, hosts, relative to none.

Every host looks up the segments of all rows of a batch to know which are its own.
"""

from typing import Any

from corpus import Corpus, made, real
from harness import Contestant, Report, arguments, chosen, compare, machine, parse

import jaxdata

SEQ_LEN, NO_END = 8192, 10**7
SHAPES = ((8, 4), (8, 8), (8, 32), (64, 8))
"""hosts, and rows of each"""


def steps_of(rows: Any, hosts: int, each: int, **settings: Any) -> Any:
    """A step of host 0; the thread that would make batches ahead is left out."""
    loader = jaxdata.Loader(rows, batch_size=hosts * each, shard=(0, hosts), prefetch=0, **settings)

    def work() -> float:
        return float(len(next(loader)["inputs"]))

    return work


def rows_of(corpus: Corpus) -> Any:
    """All sources of a corpus in equal shares, epoch after epoch."""
    dataset = jaxdata.open_dataset(corpus.path)
    rows = {
        name: jaxdata.pack(dataset.source("train", name), seq_len=SEQ_LEN)
        for name in corpus.sources
    }
    phase = jaxdata.Phase(rows=NO_END, weights=dict.fromkeys(rows, 1))
    return jaxdata.mix(rows, phases=[phase], epochs=dict.fromkeys(rows, NO_END))


def main() -> None:
    """Load with and without it in turns."""
    given = parse(arguments(__doc__ or ""))
    corpus = real(given.data, given.quick) or made(given.data, quick=given.quick)
    rows, contestants = rows_of(corpus), []
    for hosts, each in SHAPES[: 2 if given.quick else None]:
        shape = f"{hosts} hosts of {each} rows"
        contestants.append(Contestant(shape, steps_of(rows, hosts, each)))
        balanced = steps_of(rows, hosts, each, balance="attention")
        contestants.append(Contestant(f"{shape}, balanced", balanced, shape))
    facts = machine() | {"documents": corpus.documents, "seq_len": SEQ_LEN}
    report = Report("balance", "Balancing hosts", "rows of a host a second", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds}
    compare(report, chosen(contestants, given.only), **turns).show(given.json)


if __name__ == "__main__":
    main()
