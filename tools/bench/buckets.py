"""What does training from a bucket cost, next to training from a folder?

The same files, from the folder and through a server of gs:// or s3:// in a process of its own, with
the latency of a service. An epoch is read, or `--steps` batches of it; requests and
bytes are counted by the server. Every round opens the dataset anew, with nothing kept on this
machine but the plan. From the bucket rows are dealt by documents and, in a run of its own, by
chunks of 1 MiB; with `--sources 4` of a mixture.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from corpus import lengths_of, tokens_of
from harness import Line, Report, arguments, machine, parse

import jaxdata
from jaxdata.testing import write_dataset
from tests.storage.servers import BucketServer, Faults, bucket_process

BUCKET, SHARDS = "buckets", 32
SHARES = (0.6, 0.2, 0.1, 0.1)
CHUNKS = {"chunk_bytes": 2**20, "block_bytes": 2**23}


@dataclass
class Run:
    """One reading: seconds of each batch that was waited for, and what the server sent."""

    first: float
    waits: list[float]
    rows: int
    processor: float
    """seconds of the loader's process, from opening on"""
    requests: int = 0
    sent: int = 0

    def figures(self, seq_len: int) -> dict[str, float]:
        """By their names in the report."""
        batches = 1 + len(self.waits)
        return {
            "s to the first batch": self.first,
            "ms a batch": 1e3 * float(np.mean(self.waits)),
            "ms of the longest wait": 1e3 * max(self.waits),
            "processor ms a batch": 1e3 * self.processor / batches,
            "requests a batch": self.requests / batches,
            "bytes over bytes of the rows": self.sent / (2 * seq_len * self.rows),
        }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request (0.03)")
    parser.add_argument("--documents", type=int, help="of the dataset (13,000; quick: 1,000)")
    parser.add_argument("--sources", type=int, default=1, choices=range(1, 5), help="(1)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, help="batches of a round (an epoch)")
    parser.add_argument("--train", type=float, default=0.0, help="seconds a step of training (0)")
    given = parse(parser)
    documents = given.documents or (1_000 if given.quick else 13_000)
    path = made(given.data, documents, given.sources)
    faults = Faults(latency=given.latency)
    with bucket_process(given.scheme, given.data) as server:
        os.environ |= server.env
        read = partial(reading, given=given)
        bucket = server.url(f"{BUCKET}/{path.name}")
        for pack in ({}, CHUNKS):
            read(str(path), pack=pack)  # makes the plan, and warms the page cache
        server.faults = faults
        found = [
            (read(str(path)), read(bucket, server), read(bucket, server, pack=CHUNKS))
            for _ in range(given.rounds)
        ]
    show(given, documents, found)


def made(folder: Path, documents: int, sources: int = 1) -> Path:
    """The dataset, made where it is not there yet; each source has as many documents."""
    path = folder / BUCKET / f"lognormal-{documents}{f'-{sources}' if sources > 1 else ''}"
    if not (path / "dataset.json").exists():
        lengths = lengths_of(documents)
        each = np.split(tokens_of(lengths), np.cumsum(lengths)[:-1])
        given = {f"train/{name}": each for name in names(sources)}
        write_dataset(path, given, shard_documents=-(-documents // SHARDS))
    return path


def names(sources: int) -> list[str]:
    """Of the sources, the first of them web."""
    return ["web", "code", "wiki", "books"][:sources]


def rows_of(path: str, given: Any, pack: dict[str, Any]) -> Any:
    """The rows of a source, or of a mixture of several."""
    opened = jaxdata.open_dataset(path)
    rows = {
        name: jaxdata.pack(opened.source("train", name), seq_len=given.seq_len, **pack)
        for name in names(given.sources)
    }
    return (
        rows["web"]
        if len(rows) == 1
        else jaxdata.mix(rows, weights=dict(zip(rows, SHARES, strict=False)))
    )


def reading(path: str, server: BucketServer | None = None, *, given: Any, pack: Any = None) -> Run:
    """Open a dataset, and read an epoch as training would."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["JAXDATA_CACHE"] = cache
        if server:
            server.clear()
        began, used = time.perf_counter(), time.process_time()
        rows = rows_of(path, given, pack or {})
        options = {"shard": (0, 1), "num_workers": given.workers}
        loader = jaxdata.Loader(rows, batch_size=given.batch, **options)
        next(loader)
        first, steps = time.perf_counter() - began, -(-len(rows) // given.batch)
        steps = min(steps, given.steps or steps)
        waits = [waited(loader, given.train) for _ in range(steps - 1)]
        used = time.process_time() - used
        loader.close()
    run = Run(first, waits, steps * given.batch, used)
    if server:
        counts = server.counts
        run.requests, run.sent = counts.requests, counts.sent
    return run


def waited(loader: Any, train: float) -> float:
    """Seconds that training waits for a batch, after a step."""
    time.sleep(train)
    began = time.perf_counter()
    next(loader)
    return time.perf_counter() - began


def show(given: Any, documents: int, found: list[tuple[Run, Run, Run]]) -> None:
    """A line for each figure, local and remote."""
    facts = machine("obstore") | {"documents": documents}
    named = ("scheme", "latency", "sources", "batch", "seq_len", "workers", "train")
    facts |= {name: getattr(given, name) for name in named}
    question = "Training from a bucket, next to a folder"
    report = Report("buckets", question, "as said", "less", facts=facts)
    runs = zip(*found, strict=True)
    local, remote, chunks = ([run.figures(given.seq_len) for run in some] for some in runs)
    places = {"folder": local, given.scheme: remote, f"{given.scheme}, chunks": chunks}
    for what in local[0]:
        before = ""
        for place, figures in places.items():
            values = [one[what] for one in figures]
            against = [one[what] for one in places.get(before, [])]
            if any(values):
                ratios = [b / a for a, b in zip(against, values, strict=False) if a]
                name = f"{before}: {what}" if ratios else None
                report.lines.append(Line(f"{place}: {what}", values, name, ratios))
            before = place
    report.show(given.json)


if __name__ == "__main__":
    main()
