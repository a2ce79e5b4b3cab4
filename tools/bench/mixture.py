"""What does mixing cost: the rate with many sources, relative to one.

The same documents, dealt to 1, 4, 16, 64 and 256 sources of equal weight. The reference is the
rows of one source without a mixture.
"""

from typing import Any

from corpus import Corpus, made
from harness import Contestant, Report, arguments, chosen, compare, machine, parse
from load import BATCH, NO_END, SEQ_LEN, ours, rows_of

import jaxdata

SOURCES = (1, 4, 16, 64, 256)
ALONE = "one source, no mixture"


def mixture_of(corpus: Corpus) -> Any:
    """All sources of a corpus in equal shares, epoch after epoch."""
    dataset = jaxdata.open_dataset(corpus.path)
    rows = {
        name: jaxdata.pack(dataset.source("train", name), seq_len=SEQ_LEN)
        for name in corpus.sources
    }
    phase = jaxdata.Phase(rows=NO_END, weights=dict.fromkeys(rows, 1))
    return jaxdata.mix(rows, phases=[phase], epochs=dict.fromkeys(rows, NO_END))


def main() -> None:
    """Load mixtures in turns."""
    given = parse(arguments(__doc__ or ""))
    one = made(given.data, quick=given.quick)
    contestants = [Contestant(ALONE, ours(rows_of(one)))]
    for number in SOURCES[: 3 if given.quick else None]:
        corpus = made(given.data, quick=given.quick, sources=number)
        name = f"{number} sources mixed" if number > 1 else "1 source mixed"
        contestants.append(Contestant(name, ours(mixture_of(corpus)), ALONE))
    facts = machine() | {"documents": one.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("mixture", "Loading a mixture", "million tokens a second", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds}
    compare(report, chosen(contestants, given.only), scale=1e-6, **turns).show(given.json)


if __name__ == "__main__":
    main()
