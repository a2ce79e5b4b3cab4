"""Objects larger than memory: read in pieces of one version, written in parts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdata.errors import DatasetError
from jaxdata.format.storage import open_store, streamed
from jaxdata.format.storage.objects import uploads
from jaxdata.installing import install_command
from jaxdata.testing.buckets import BucketServer, Faults, bucket_server
from tests.format.buckets.conftest import use

PIECE = 1000


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    """One for all tests: tensorstore goes on asking the server that it asked first."""
    with bucket_server(request.param) as server:
        yield server


@pytest.fixture
def bucket(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """An empty bucket `pieces`; pieces and parts are small."""
    monkeypatch.setattr(streamed, "_PIECE", PIECE)
    monkeypatch.setattr(uploads, "_MOST_WHOLE", PIECE)
    monkeypatch.setattr(uploads, "_PART", 5 * 2**20)  # the least that Amazon takes
    use(server, monkeypatch)
    yield server
    server.faults = ()
    for name in server.names():
        server.delete(name)
    server.clear()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 7 * PIECE, 7 * PIECE + 1])
@pytest.mark.parametrize("expected", ["unknown", "right", "too small", "too large"])
def test_a_scan_gives_the_bytes_of_an_object(
    bucket: BucketServer, size: int, expected: str
) -> None:
    data = os.urandom(size)
    bucket.write("pieces/deep/a", data)
    hint = {"unknown": None, "right": size, "too small": size // 2, "too large": 2 * size + 9}
    pieces = list(open_store(bucket.url("pieces/deep")).scan("a", hint[expected]))
    assert b"".join(pieces) == data
    if expected != "too small":
        assert max(map(len, pieces), default=0) <= PIECE
    if expected == "right" and size:
        assert sum(each.sent for each in bucket.requests) < size + 900, "no byte is sent twice"


def test_a_scan_reads_a_few_pieces_at_a_time(bucket: BucketServer) -> None:
    bucket.write("pieces/a", bytes(50 * PIECE))
    pieces = open_store(bucket.url("pieces")).scan("a", 50 * PIECE)
    next(pieces)
    assert bucket.counts.requests <= 5


def test_a_scan_survives_faults_and_notices_another_version(bucket: BucketServer) -> None:
    data = os.urandom(20 * PIECE)
    bucket.write("pieces/a", data)
    bucket.faults = Faults(unavailable=0.1, reset=0.1, cut=0.1)
    store = open_store(bucket.url("pieces"))
    assert b"".join(store.scan("a")) == data
    bucket.faults = ()
    pieces = store.scan("a")
    next(pieces)
    bucket.write("pieces/a", data[::-1])
    with pytest.raises(DatasetError, match=r"\w+://pieces/a changed while it was read"):
        list(pieces)


def test_a_scan_of_nothing(bucket: BucketServer) -> None:
    with pytest.raises(DatasetError, match=r"\w+://pieces/none is missing"):
        list(open_store(bucket.url("pieces")).scan("none"))


def write(url: str, data: bytes, fence: Any = None) -> None:
    store = open_store(url)
    with (store.fenced(fence) if fence else store).create("a") as path:
        path.write_bytes(data)


def test_a_large_file_is_written_in_parts(bucket: BucketServer) -> None:
    pytest.importorskip("obstore", reason="needs jaxdata[buckets]")
    data = os.urandom(11 * 2**20)
    calls = []
    write(bucket.url("pieces"), data, lambda: calls.append(bucket.names()))
    assert bucket.read("pieces/a") == data
    assert [each.method for each in bucket.requests].count("PUT") == 3
    assert calls == [[]], "the fence is asked before the object appears"


def test_a_writer_who_lost_his_right_leaves_no_object(bucket: BucketServer) -> None:
    pytest.importorskip("obstore", reason="needs jaxdata[buckets]")

    def lost() -> None:
        raise DatasetError("another process took over")

    with pytest.raises(DatasetError, match="another process took over"):
        write(bucket.url("pieces"), bytes(2**20), lost)
    assert not bucket.names()


def test_no_right_to_write_is_said(bucket: BucketServer) -> None:
    pytest.importorskip("obstore", reason="needs jaxdata[buckets]")
    bucket.faults = Faults(forbidden=1.0, methods="PUT POST DELETE")
    store = open_store(bucket.url("pieces"))
    bucket.write("pieces/b/c", b"")
    for name, change in {
        "a": lambda: write(store.url, bytes(2**20)),
        "d": lambda: store.write("d", b""),
        "e": lambda: store.update("e", lambda _: b""),
        "b/c": lambda: store.delete("b/"),
    }.items():
        said = rf"pieces/{name} cannot be written: .* may not write it: use others, or let"
        with pytest.raises(DatasetError, match=said):
            change()


def test_without_obstore_files_are_written_whole_up_to_5_gb(
    bucket: BucketServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    write(bucket.url("pieces"), bytes(2**20))
    assert len(bucket.read("pieces/a")) == 2**20
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 * 10**9 + 1)  # a hole: takes no space
    command = re.escape(install_command("buckets"))
    said = rf"more than the 5,000,000,000 of one request: to write .*{command}"
    with pytest.raises(DatasetError, match=said):
        uploads.upload(bucket.url("pieces/b"), tmp_path / "large", None)
