"""What waits for a bucket that is silent, each by a name; as a program, one of them until Ctrl-C.

python -m tests.storage.buckets.interrupted NAME SCHEME ADDRESS
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np

import jaxdata
from jaxdata.cli import _unraisable
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.storage import Store, client, open_store
from jaxdata.storage.objects import ObjectPath
from tests.builders import dataset
from tests.storage.servers import BucketServer, Faults

WAITS: dict[str, Callable[[BucketServer], object]] = {}
SILENT = Faults(silent=1.0)


def waits(do: Callable[[BucketServer], object]) -> Callable[[BucketServer], object]:
    WAITS[do.__name__] = do
    return do


def prepare(server: BucketServer, folder: Path) -> None:
    """Put there what some of them read."""
    dataset(folder / "bkt/ds", {"web": [np.arange(1, 90)] * 90}, shard_documents=10)
    server.write("bkt/large", bytes(2**23))


def _store(server: BucketServer) -> Store:
    return open_store(server.url("bkt/new"))


@waits
def read(server: BucketServer) -> None:
    server.faults = SILENT
    _store(server).read("a")


@waits
def send_many(server: BucketServer) -> None:
    from jaxdata.train.output_folder import _each

    server.faults = SILENT
    _each(lambda name: _store(server).write(name, b"content"), [str(k) for k in range(20)])


@waits
def upload_in_parts(server: BucketServer) -> None:
    server.faults = SILENT
    with patch.object(client, "MOST_WHOLE", 0), _store(server).create("upload") as path:
        path.write_bytes(bytes(2**20))


@waits
def look_at_inputs(server: BucketServer) -> None:
    server.faults = SILENT
    find_inputs([server.url(f"bkt/{k}.txt") for k in range(40)])


@waits
def read_a_file(server: BucketServer) -> None:
    path = ObjectPath(server.url("bkt/large"))
    with path.open() as file:
        server.faults = SILENT
        file.read()


@waits
def read_batches(server: BucketServer) -> None:
    docs = jaxdata.open_dataset(server.url("bkt/ds")).source("train", "web")
    rows = jaxdata.pack(docs, seq_len=64)
    with closing(jaxdata.Loader(rows, batch_size=2, shard=(0, 1))) as loader:
        server.faults = Faults(silent=1.0, path="*.array_record")
        next(loader)


if __name__ == "__main__":
    name, scheme, address = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    sys.unraisablehook = _unraisable  # as in a command
    print("ready", flush=True)
    try:
        WAITS[name](BucketServer(scheme, address))  # type: ignore[arg-type]
    except KeyboardInterrupt:
        sys.exit(130)
