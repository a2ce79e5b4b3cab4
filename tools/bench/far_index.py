"""How much of a huge dataset in a bucket does a fresh host fetch before its first batch?

The index is real: made lengths, places, checksums of pages, and the plan. The shards are holes in
files, as long as the index says, so that a billion documents (1.4 TB) take 5 GB. The host has
imported its libraries before the clock starts.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from corpus import lengths_of
from harness import Line, Report, arguments, machine, parse
from numpy.typing import NDArray

import jaxdata
from jaxdata.dataset.index import anchors
from jaxdata.dataset.manifest import Manifest, ShardEntry, SourceEntry, TokenizerEntry, encode_json
from jaxdata.dataset.records import STREAM_START, RecordSpec, file_offset
from jaxdata.storage import open_store, zarr
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from tests.storage.servers import Faults, bucket_process

BUCKET, SOURCE, SEQ_LEN = "buckets", "train/web", 2048
SHARD_DOCUMENTS, TEMPLATE = 2**21, 2**22
HOST = """
import json, sys, time, tensorstore, jaxdata
import jaxdata.dataset.opening, jaxdata.feed.loader, jaxdata.rows.packing.packed_rows
began, found = time.perf_counter(), []
rows = jaxdata.pack(jaxdata.open_dataset(sys.argv[1]).source("train", "web"), seq_len=2048)
found.append(time.perf_counter() - began)
loader = jaxdata.Loader(rows, batch_size=64, shard=(0, int(sys.argv[2])))
next(loader)
found.append(time.perf_counter() - began)
loader.close()
print(json.dumps(found))
"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request (0.03)")
    parser.add_argument("--documents", type=int, help="(50,000,000; quick: 100,000)")
    parser.add_argument("--hosts", type=int, default=1, help="of the run; one is measured (1)")
    given = parse(parser)
    documents = given.documents or (100_000 if given.quick else 50_000_000)
    path = made(given.data / BUCKET / f"index-{documents}", documents)
    jaxdata.pack(jaxdata.open_dataset(path).source("train", "web"), seq_len=SEQ_LEN)  # keeps a plan
    with bucket_process("gs", given.data) as server:
        server.faults = Faults(latency=given.latency)
        url = server.url(f"{BUCKET}/{path.name}")
        found = [fresh_host(url, server, given.hosts) for _ in range(given.rounds)]
    size = sum(shard.bytes for shard in jaxdata.open_dataset(path).manifest.sources[SOURCE].shards)
    facts = machine("tensorstore") | {"documents": documents, "GB": round(size / 1e9)}
    facts |= {"latency": given.latency, "hosts": given.hosts}
    question = "A fresh host's first batch"
    report = Report("far_index", question, "as said", "less", facts=facts)
    for what in found[0]:
        report.lines.append(Line(what, [each[what] for each in found]))
    report.show(given.json)


def fresh_host(url: str, server: Any, hosts: int) -> dict[str, float]:
    """Seconds of a process without a cache, and what the server sent to it."""
    server.clear()
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | server.env | {"JAXDATA_CACHE": cache}
        command = [sys.executable, "-c", HOST, url, str(hosts)]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    opened, first = json.loads(ran.stdout)
    requests = list(server.requests)
    rows = sum(each.sent for each in requests if each.object.endswith(".array_record"))
    other = sum(each.sent for each in requests) - rows
    return {
        "s to open and pack": opened,
        "s to the first batch": first,
        "MB of index, plan and manifest": other / 1e6,
        "MB of shards (also read ahead)": rows / 1e6,
    }


def made(path: Path, documents: int) -> Path:
    """The dataset, made where it is not there yet."""
    if (path / "dataset.json").exists():
        return path
    store, spec = open_store(path), RecordSpec("uint16")
    lengths = np.resize(lengths_of(TEMPLATE).astype(np.uint32), documents)
    shards = [
        hole(path, f"{SOURCE}/{first}.array_record", lengths[first : first + SHARD_DOCUMENTS], spec)
        for first in range(0, documents, SHARD_DOCUMENTS)
    ]
    columns = {
        "length": lengths,
        "anchor": anchors(lengths, spec),
        "page": checksums_of(shards),
        "origin_file": np.zeros(documents, np.uint32),
        "origin_row": np.arange(documents, dtype=np.uint32),
    }
    checksums = {
        name: zarr.write(store, f"{SOURCE}/index/{name}", column)
        for name, column in columns.items()
    }
    entry = SourceEntry(
        documents=documents,
        tokens=int(lengths.sum(dtype=np.int64)),
        shards=shards,
        fingerprint=checksums["length"],
        inputs=[],
        parameters={},
        statistics={},
        checksums=checksums,
    )
    tokenizer = TokenizerEntry(
        kind="bytes", name="toy", files={}, vocab_size=2, eod_id=0, bos_id=None, pad_id=None
    )
    store.write(
        "dataset.json",
        encode_json(
            Manifest(
                tokenizer=tokenizer, dtype="uint16", record_tokens=16_384, sources={SOURCE: entry}
            )
        ),
    )
    return path


def hole(path: Path, name: str, lengths: NDArray[np.uint32], spec: RecordSpec) -> ShardEntry:
    """A shard without content."""
    size = int(file_offset(STREAM_START + int(spec.stream_bytes(lengths).sum()) - 1)) + 1
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).touch()
    os.truncate(path / name, size)
    return ShardEntry(
        name=name,
        documents=len(lengths),
        records=int(spec.records(lengths).sum()),
        tokens=int(lengths.sum(dtype=np.int64)),
        bytes=size,
        sha256=hashlib.sha256(name.encode()).hexdigest(),
    )


def checksums_of(shards: list[ShardEntry]) -> NDArray[np.uint32]:
    """Of pages of zeros."""
    whole, found = zlib.crc32(bytes(PAGE_BYTES)), list[int]()
    for shard in shards:
        pages, rest = divmod(shard.bytes, PAGE_BYTES)
        found += pages * [whole] + ([zlib.crc32(bytes(rest))] if rest else [])
    return np.array(found, np.uint32)


if __name__ == "__main__":
    main()
