"""How many tokens a second does a loader deliver, against the fast and the comparable ones?

Ours makes five arrays of shuffled, best-fit packed rows with exact masks; the crops of nanoGPT and
the copies of a memory map know no documents. A figure counts slots of rows, padding included.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus, made, real
from harness import Contestant, Report, arguments, chosen, compare, machine, parse
from neighbours import datasets_work, installed, litdata_work
from numpy.typing import NDArray
from stock_grain import PACKERS, batches

import jaxdata

SEQ_LEN, BATCH = 2048, 64
CROPS = "memmap crops"
BEST_GRAIN = "grain first fit, no threads"
NO_END = 1_000_000


def rows_of(corpus: Corpus, **settings: Any) -> Any:
    """Rows of the only source of a corpus."""
    documents = jaxdata.open_dataset(corpus.path).source("train", corpus.sources[0])
    return jaxdata.pack(documents, seq_len=SEQ_LEN, **settings)


def ours(rows: Any, batch_size: int = BATCH, **settings: Any) -> Callable[[], float]:
    """A batch of our loader; begins again where the epoch ends."""
    loader = jaxdata.Loader(
        rows, batch_size=batch_size, **{"shard": (0, 1), "prefetch": 0} | settings
    )

    def work() -> float:
        batch = next(loader, None)
        if batch is None:
            loader.reset()
            batch = next(loader)
        assert batch["loss_mask"].shape == (batch_size, SEQ_LEN)
        return float(batch_size * SEQ_LEN)

    return work


def endless(rows: Any) -> Any:
    """The same rows, epoch after epoch, so that worker processes are started once."""
    phase = jaxdata.Phase(rows=NO_END, weights={"all": 1})
    return jaxdata.mix({"all": rows}, phases=[phase], epochs={"all": 10 + NO_END // len(rows)})


def crops(flat: NDArray[np.uint16], batch_size: int) -> Callable[[], float]:
    """Random crops as nanoGPT takes them, in int32."""
    order = np.random.default_rng(0)

    def work() -> float:
        starts = order.integers(0, len(flat) - SEQ_LEN - 1, batch_size).tolist()
        x = np.stack([flat[i : i + SEQ_LEN].astype(np.int32) for i in starts])
        y = np.stack([flat[i + 1 : i + 1 + SEQ_LEN].astype(np.int32) for i in starts])
        return float((x.size + y.size) / 2)

    return work


def copies(flat: NDArray[np.uint16]) -> Callable[[], float]:
    """The memory map from its beginning, straight into one array that is used again."""
    out = np.empty((BATCH, SEQ_LEN), np.uint16)
    step = out.size
    starts = (k % (len(flat) // step) * step for k in count())

    def work() -> float:
        begin = next(starts)
        np.copyto(out.reshape(-1), flat[begin : begin + step])
        return float(step)

    return work


def stock(shards: list[str], packer: str, threads: bool) -> Callable[[], float]:
    """A batch of stock grain; its iterator is made at the first turn."""
    stream: list[Iterator[Any]] = []

    def work() -> float:
        if not stream:
            settings = {"seq_len": SEQ_LEN, "batch_size": BATCH, "threads": threads}
            stream.append(batches(shards, packer, **settings))
        return float(next(stream[0])["inputs"].size)

    return work


def our_contestants(corpus: Corpus) -> list[Contestant]:
    """Our loader as a user calls it, and with its variations."""
    rows, small = rows_of(corpus), rows_of(corpus, block_bytes=2**24)
    return [
        Contestant("jaxdata", ours(rows), CROPS),
        Contestant(
            "jaxdata, every block planned anew",
            ours(small),
            CROPS,
            "blocks of 8,192: as in a corpus of more blocks than plans are kept",
        ),
        Contestant("jaxdata, concat", ours(rows_of(corpus, strategy="concat")), CROPS),
        Contestant("jaxdata, batch 8", ours(rows, 8), CROPS),
        Contestant("jaxdata, a thread ahead", ours(endless(rows), prefetch=2), CROPS, threads=True),
        Contestant(
            "jaxdata, 2 workers",
            ours(endless(rows), prefetch=2, num_workers=2),
            "jaxdata",
            "needs two free cores",
            threads=True,
        ),
    ]


def reference_contestants(corpus: Corpus) -> list[Contestant]:
    """The fast ones, which know no documents."""
    flat = corpus.flat
    found = [
        Contestant(CROPS, crops(flat, BATCH)),
        Contestant("memmap crops, batch 8", crops(flat, 8), CROPS),
        Contestant("memory map copied, uint16", copies(flat), CROPS, "one array, used again"),
    ]
    if installed("litdata"):
        found.append(
            Contestant("LitData TokensLoader", litdata_work(corpus, SEQ_LEN, BATCH), CROPS)
        )
    if installed("datasets"):
        work = datasets_work(corpus, SEQ_LEN, BATCH)
        found.append(Contestant("datasets, numpy format", work, CROPS))
    return found


def grain_contestants(corpus: Corpus, single: Corpus) -> list[Contestant]:
    """Stock grain, at its best (no threads, small shards) and as it comes."""
    found = [
        Contestant(f"grain {packer}, no threads", stock(corpus.shards, packer, False), CROPS)
        for packer in PACKERS
    ]
    found += [
        Contestant(
            f"grain {packer}, default", stock(corpus.shards, packer, True), CROPS, threads=True
        )
        for packer in PACKERS
    ]
    one = stock(single.shards, "first fit", True)
    name = "grain first fit, default, one shard"
    return [*found, Contestant(name, one, CROPS, threads=True)]


def real_contestants(folder: Path, quick: bool) -> list[Contestant]:
    """Our loader on real text, where there is any."""
    corpus = real(folder, quick)
    if corpus is None:
        return []
    return [Contestant("jaxdata, real text", ours(rows_of(corpus)), CROPS)]


def main() -> None:
    """Load in turns."""
    given = parse(arguments(__doc__ or ""))
    corpus = made(given.data, quick=given.quick)
    single = made(given.data, quick=given.quick, shard_documents=1_000_000)
    contestants = [
        *reference_contestants(corpus),
        *our_contestants(corpus),
        *real_contestants(given.data, given.quick),
        *grain_contestants(corpus, single),
    ]
    facts = machine("grain", "array_record", "litdata", "datasets")
    facts |= {"documents": corpus.documents, "batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("load", "Loading", "million tokens a second", facts=facts)
    compare(
        report,
        chosen(contestants, given.only),
        rounds=given.rounds,
        seconds=given.seconds,
        scale=1e-6,
    )
    report.show(given.json)


if __name__ == "__main__":
    main()
