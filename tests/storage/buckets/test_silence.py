"""Ctrl-C while a bucket is silent: it ends what waits at once, and nothing holds up the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer
from unittest.mock import patch

import numpy as np
import pytest

import jaxdata
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.storage import Store, client, open_store
from jaxdata.storage.objects import ObjectPath
from jaxdata.train.output_folder import _each
from tests.builders import dataset
from tests.storage.buckets.conftest import use
from tests.storage.servers import BucketServer, Faults, bucket_server

WAITS: dict[str, Callable[[BucketServer], object]] = {}
SILENT = Faults(silent=1.0)


def waits(do: Callable[[BucketServer], object]) -> Callable[[BucketServer], object]:
    WAITS[do.__name__] = do
    return do


def _store(server: BucketServer) -> Store:
    return open_store(server.url("bkt/new"))


@waits
def read(server: BucketServer) -> None:
    server.faults = SILENT
    _store(server).read("a")


@waits
def send_many(server: BucketServer) -> None:
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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with bucket_server("gs", folder=tmp_path) as server:
        use(server, monkeypatch)
        dataset(tmp_path / "bkt/ds", {"web": [np.arange(1, 90)] * 90}, shard_documents=10)
        server.write("bkt/large", bytes(2**23))
        yield server
        server.faults = ()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", WAITS)
def test_nothing_waits_on_after_an_interrupt(bucket: BucketServer, name: str) -> None:
    timer = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        WAITS[name](bucket)
    timer.join()
