"""Buckets to which URLs lead, a file of every kind to put there, and conversions of it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import jaxdata
from jaxdata.testing.buckets import BucketServer, bucket_server
from tests.format.buckets.conftest import use


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.exhaustive)])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of each kind, to which URLs lead."""
    with bucket_server(request.param) as server:
        use(server, monkeypatch)
        yield server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        use(server, monkeypatch)
        yield server


def documents(count: int, name: str) -> list[dict[str, Any]]:
    return [{"text": f"document {name} {k} " * (9 + k % 40), "number": k} for k in range(count)]


def lines(count: int, name: str) -> bytes:
    return "\n".join(map(json.dumps, documents(count, name))).encode()


def write_corpus(folder: Path) -> None:
    """A file of every kind, several larger than a unit of 64 KiB; and some that are no inputs."""
    (folder / "sub/.hidden").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(900, "a"))
    (folder / "sub/b.jsonl.gz").write_bytes(gzip.compress(lines(900, "b"), 1))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(lines(50, "c")))
    (folder / "d.txt").write_text("some text\n\nmore text" * 30_000)
    (folder / "e.json").write_text(json.dumps(documents(100, "e")))
    table = pa.Table.from_pylist(documents(900, "f"))
    pq.write_table(table, folder / "f.parquet", row_group_size=300)
    with pa.ipc.new_file(str(folder / "g.arrow"), table.schema) as writer:
        writer.write_table(table, 100)
    with pa.ipc.new_stream(str(folder / "h.arrow"), table.schema) as writer:
        writer.write_table(table.slice(0, 700))
        writer.write_table(table.slice(700), 50)
    with tarfile.open(folder / "i.tar", "w") as archive:
        for name in "xy":
            data = lines(50, name)
            member = tarfile.TarInfo(f"{name}.jsonl")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (folder / "sub/.hidden/z.jsonl").write_bytes(lines(1, "z"))
    (folder / "notes.pdf").write_text("1,2")


def upload(server: BucketServer, folder: Path, place: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.write(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def convert(inputs: Any, output: Path, **more: Any) -> Any:
    options = {"source": "web", "tokenizer": "bytes", "workers": 1, "unit_bytes": 2**16}
    return jaxdata.convert(inputs, output=output, **options | {"piece_bytes": 2**14} | more)
