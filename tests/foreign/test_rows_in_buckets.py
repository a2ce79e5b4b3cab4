"""Rows written to a bucket and read from it, and documents exported to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from tests.storage.buckets.conftest import use
from tests.storage.servers import BucketServer, bucket_server


@pytest.fixture(scope="module", params=["gs", pytest.param("s3", marks=pytest.mark.exhaustive)])
def server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    with bucket_server(request.param) as server:
        yield server


@pytest.fixture
def bucket(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    use(server, monkeypatch)
    yield server
    for name in server.names():
        server.delete(name)


def documents() -> Any:
    return jaxdata.ArrayDocuments([[*range(1, 3 + k % 9), 0] for k in range(200)])


def test_rows_are_written_to_a_bucket_and_read_from_it(bucket: BucketServer) -> None:
    rows = jaxdata.pack(documents(), seq_len=16)
    url = bucket.url("rows/run")
    made = jaxdata.materialize(rows, url, shard_rows=20, workers=2)
    assert made.rows == len(rows)
    found = jaxdata.open_rows(url)
    for number in range(len(rows)):
        np.testing.assert_array_equal(found[number]["inputs"], rows[number]["inputs"])
    assert jaxdata.materialize(rows, url, shard_rows=20) == made

    shard = f"rows/run/{made.shards[0].name}"
    bucket.write(shard, bucket.read(shard)[:-1] + b"\1")
    with pytest.raises(DatasetError, match=r"run/.*cannot be read: its content differs"):
        jaxdata.open_rows(url)[0]


@pytest.mark.parametrize(
    ("format_", "suffixes"), [("megatron", [".bin", ".idx"]), ("nanogpt", [""])]
)
def test_documents_are_exported_to_a_bucket(
    bucket: BucketServer, tmp_path: Path, format_: str, suffixes: list[str]
) -> None:
    options: Any = {"format": format_, "eod_id": 0}
    local = jaxdata.export(documents(), tmp_path / "mine", **options)
    remote = jaxdata.export(documents(), bucket.url("rows/deep/mine"), **options)
    assert remote.files == [bucket.url(f"rows/deep/mine{suffix}") for suffix in suffixes]
    assert remote.bytes == local.bytes
    for suffix in suffixes:
        expected = (tmp_path / f"mine{suffix}").read_bytes()
        assert bucket.read(f"rows/deep/mine{suffix}") == expected
    with pytest.raises(
        InputError, match=r"rows/deep/mine(\.bin|\.idx)? exists already: choose another"
    ):
        jaxdata.export(documents(), bucket.url("rows/deep/mine"), **options)


def test_nothing_is_exported_to_a_web_server() -> None:
    with pytest.raises(InputError, match="cannot open 'https://host/b': expected a local path, gs"):
        jaxdata.export(documents(), "https://host/b/mine", format="megatron")
