"""How long from a saved state to the next batch, wherever in training it was saved?

Each time everything is opened anew, as a restarted job does; the plan is kept in the dataset. The
reference is stock grain's first-fit packing, whose state is restored by its own `set_state`.
"""

from collections.abc import Callable
from typing import Any

from corpus import Corpus, made
from harness import Contestant, Report, arguments, chosen, compare, machine, now, parse
from stock_grain import batches

import jaxdata

SEQ_LEN, BATCH = 2048, 64
EPOCHS = 1001
AT_START = "at row 0"


def loader_of(corpus: Corpus) -> Any:
    """Open everything: a dataset, its rows, 1001 epochs of them, a loader."""
    documents = jaxdata.open_dataset(corpus.path).source("train", corpus.sources[0])
    rows = jaxdata.pack(documents, seq_len=SEQ_LEN)
    budget = jaxdata.Phase(rows=EPOCHS * len(rows), weights={"all": 1})
    mixed = jaxdata.mix({"all": rows}, phases=[budget], epochs={"all": EPOCHS})
    return jaxdata.Loader(mixed, batch_size=BATCH, shard=(0, 1), prefetch=0)


def resumed(corpus: Corpus, epoch: float) -> Callable[[], float]:
    """Seconds from nothing to the batch after a state in the given epoch."""
    loader = loader_of(corpus)
    each = len(loader) // EPOCHS
    loader.seek(step=int(epoch * each))
    state = loader.get_state()

    def work() -> float:
        begin = now()
        again = loader_of(corpus)
        again.set_state(state)
        next(again)
        return now() - begin

    return work


def sought(corpus: Corpus) -> Callable[[], float]:
    """Seconds of a seek in a loader that is running, and its batch."""
    loader = loader_of(corpus)
    steps = len(loader)
    place = 0

    def work() -> float:
        nonlocal place
        place = (place + 7_919 * 64) % (steps - 1)
        begin = now()
        loader.seek(step=place)
        next(loader)
        return now() - begin

    return work


def stock(corpus: Corpus) -> Callable[[], float]:
    """Seconds of grain's restore after 20 batches, its pipeline built anew."""
    settings = {"seq_len": SEQ_LEN, "batch_size": BATCH, "threads": False}
    running: Any = batches(corpus.shards, "first fit", **settings)
    for _ in range(20):
        next(running)
    state = running.get_state()

    def work() -> float:
        begin = now()
        again: Any = batches(corpus.shards, "first fit", **settings)
        again.set_state(state)
        next(again)
        return now() - begin

    return work


def main() -> None:
    """Resume in turns."""
    given = parse(arguments(__doc__ or ""))
    corpus = made(given.data, quick=given.quick)
    places = {"in the middle of epoch 0": 0.5, "at the end of epoch 0": 1, "in epoch 1000": 1000.5}
    contestants = [
        Contestant(AT_START, resumed(corpus, 0)),
        *(Contestant(name, resumed(corpus, at), AT_START) for name, at in places.items()),
        Contestant("a running loader, seek", sought(corpus), AT_START),
        Contestant("grain first fit, no threads", stock(corpus), AT_START),
    ]
    facts = machine("grain") | {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("resume", "From a state to the next batch", "ms", "less", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds, "timed": True}
    compare(report, chosen(contestants, given.only), scale=1e3, **turns).show(given.json)


if __name__ == "__main__":
    main()
