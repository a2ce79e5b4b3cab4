"""What do several hosts download together, and is it what `jaxdata preview --hosts` says before?

Each host is a process with a page cache of its own; all read one epoch from a server of gs:// or
s3:// on this machine, which counts. The dataset is dealt by chunks, in lanes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from buckets import BUCKET, made
from harness import Line, Report, arguments, machine, parse

import jaxdata
from jaxdata.look.read_costs import read_costs, total
from tests.storage.servers import Faults, bucket_process

HOST = """
import sys, jaxdata
from bucket_hosts import rows_of
path, host, hosts, batch, lanes = sys.argv[1], *map(int, sys.argv[2:])
loader = jaxdata.Loader(rows_of(path, lanes), batch_size=batch, shard=(host, hosts))
for _ in loader:
    pass
loader.close()
"""
BLOCK_BYTES = 2**20


def rows_of(path: str, lanes: int) -> Any:
    """The rows of the run."""
    source = jaxdata.open_dataset(path).source("train", "web")
    order = {"chunk_bytes": 2**20, "block_bytes": BLOCK_BYTES, "lanes": lanes}
    return jaxdata.pack(source, seq_len=2048, **order)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request (0.03)")
    parser.add_argument("--documents", type=int, help="of the dataset (60,000; quick: 3,000)")
    parser.add_argument("--hosts", type=int, help="(8; quick: 2)")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    given = parse(parser)
    given.hosts = given.hosts or (2 if given.quick else 8)
    documents = given.documents or (3_000 if given.quick else 60_000)
    path = made(given.data, documents)
    rows = rows_of(str(path), given.lanes)
    costs = total(read_costs(rows.table, given.hosts, given.batch))
    with bucket_process(given.scheme, given.data) as server:
        server.faults = Faults(latency=given.latency)
        sent, requests = [], []
        for _ in range(given.rounds):
            server.clear()
            read_by_hosts(server.url(f"{BUCKET}/{path.name}"), server.env, given)
            shards = [each for each in server.requests if each.object.endswith(".array_record")]
            sent.append(sum(each.sent for each in shards) / costs.file_bytes)
            requests.append(len(shards) / (len(rows) / given.batch) / given.hosts)
    facts = machine("obstore") | {"documents": documents, "MB": costs.file_bytes / 1e6}
    facts |= {name: getattr(given, name) for name in ("scheme", "hosts", "lanes", "batch")}
    report = Report("bucket_hosts", "What several hosts download", "as said", "less", facts=facts)
    report.lines.append(Line("planned: bytes over those of the dataset", [costs.over]))
    report.lines.append(Line("downloaded: bytes over those of the dataset", sent))
    report.lines.append(Line("requests a batch and host", requests))
    report.show(given.json)


def read_by_hosts(url: str, env: dict[str, str], given: Any) -> None:
    """All hosts read an epoch side by side."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for host in range(given.hosts):
            own = {"JAXDATA_CACHE": f"{folder}/{host}", "PYTHONPATH": python_path()}
            numbers = (host, given.hosts, given.batch, given.lanes)
            command = [sys.executable, "-c", HOST, url, *map(str, numbers)]
            running.append(subprocess.Popen(command, env=os.environ | env | own))
        codes = [process.wait() for process in running]
        if any(codes):
            sys.exit("a host ended with an error")


def python_path() -> str:
    """Where the hosts find this file."""
    here = str(Path(__file__).parent)
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


if __name__ == "__main__":
    main()
