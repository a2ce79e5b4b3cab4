"""What does a read cost where documents lie in 10, 1,000 or 100,000 shards?

Documents of the same lengths in each case; all files are in the page cache, as they are hard links
to at most 250 files, so the time of a disk is not in it. A process maps at most 16,384 files, and
reads ranges of further ones.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from corpus import lengths_of, tokens_of
from harness import Contestant, Report, arguments, compare, machine, now, once, parse
from many_shards import write_many_shards
from memory import usage

import jaxdata

DOCUMENTS, QUICK_DOCUMENTS = 100_000, 1_000
SHARDS, QUICK_SHARDS = (10, 1_000, 100_000), (10, 100, 1_000)
DISTINCT, AT_ONCE, SEQ_LEN, BATCH = 250, 1_000, 2048, 64


def made(folder: Path, documents: int, shards: int) -> Path:
    """The dataset, made where it is not there yet."""
    path = folder / f"shards-{documents}-{shards}"
    if not (path / "dataset.json").exists():
        each = documents // shards
        lengths = lengths_of(each * min(shards, DISTINCT))
        own = np.split(tokens_of(lengths), np.cumsum(lengths)[:-1])
        write_many_shards(path, own, shards, each)
    return path


def documents_read(path: Path) -> Callable[[], float]:
    """Seconds a document, read anywhere, many at a time."""
    source = jaxdata.open_dataset(path).source("train", "web")
    order = np.random.default_rng(0)

    def work() -> float:
        chosen = order.integers(0, len(source), AT_ONCE)
        counts = source.lengths[chosen].astype(np.int64)
        begin = now()
        source.tokens(chosen, np.zeros_like(counts), counts).views.join()
        return (now() - begin) / AT_ONCE

    return work


def batches_loaded(path: Path) -> Callable[[], float]:
    """Seconds a row of an epoch."""
    source = jaxdata.open_dataset(path).source("train", "web")
    rows = jaxdata.pack(source, seq_len=SEQ_LEN)
    steps = min(len(rows), 32 * BATCH) // BATCH
    loader = jaxdata.Loader(rows, batch_size=BATCH, shard=(0, 1), prefetch=0)

    def work() -> float:
        if loader.next_row + steps * BATCH > len(rows):
            loader.reset()
        return once(lambda: [next(loader) for _ in range(steps)]) / (steps * BATCH)

    return work


def child(path: str) -> None:
    """Open a dataset in this process; print the seconds and the bytes that it took."""
    before = usage()["anonymous"]
    begin = now()
    source = jaxdata.open_dataset(path).source("train", "web")
    source[len(source) // 2]
    print(json.dumps([now() - begin, usage()["anonymous"] - before]))


def opened(path: Path) -> list[float]:
    """What a child says."""
    command = [sys.executable, __file__, "--child", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Read in turns, then open in processes of their own."""
    given = parse(arguments(__doc__ or ""))
    documents = QUICK_DOCUMENTS if given.quick else DOCUMENTS
    counts = QUICK_SHARDS if given.quick else SHARDS
    given.data.mkdir(parents=True, exist_ok=True)
    paths = {f"{count:,} shards": made(given.data, documents, count) for count in counts}
    first = next(iter(paths))
    works = {"a document": documents_read, f"a row of {SEQ_LEN}": batches_loaded}
    for what, make in works.items():
        report = Report("shards", f"Reading {what}", "microseconds", "less", facts=machine())
        contestants = [
            Contestant(f"{name}, {what}", make(path), f"{first}, {what}" if name != first else None)
            for name, path in paths.items()
        ]
        settings = {"rounds": given.rounds, "seconds": given.seconds, "timed": True}
        compare(report, contestants, scale=1e6, **settings).show(given.json)
    found = {name: [opened(path) for _ in range(given.rounds)] for name, path in paths.items()}
    for place, unit, scale in ((0, "ms", 1e3), (1, "MB", 1e-6)):
        report = Report("shards", "Opening, and a document", unit, "less", facts=machine())
        for name, figures in found.items():
            report.add(f"{name}, opened: {unit}", *(scale * one[place] for one in figures))
        report.show(given.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
