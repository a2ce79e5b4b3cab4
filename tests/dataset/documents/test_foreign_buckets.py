"""Other tools' datasets in buckets: the same rows as of the same files on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset.foreign import source_name
from jaxdata.storage.pages.read_counts import ENTRIES, READS
from jaxdata.testing import assert_same_batches
from tests.dataset.documents.test_foreign import write_datatrove
from tests.storage.buckets.conftest import use
from tests.storage.servers import BucketServer, bucket_server


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        yield server


@pytest.fixture
def bucket(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    use(server, monkeypatch)
    yield server
    READS.move_to(np.zeros(ENTRIES))  # from the file that the cache shared with other processes
    for name in server.names():
        server.delete(name)


def written(folder: Path, kind: str) -> str:
    """The name of a dataset of this kind in a folder."""
    tokens = [np.array([*range(1, 3 + k % 97), 0]) for k in range(300)]
    folder.mkdir()
    if kind == "datatrove":
        write_datatrove(folder / "mine.ds", tokens, masks=[each % 3 != 1 for each in tokens])
        return "mine.ds"
    masks = [np.arange(len(each)) > 0 for each in tokens] if kind == "gpts" else None
    docs = jaxdata.ArrayDocuments(tokens, masks)
    jaxdata.export(docs, folder / "mine", format=kind, eod_id=0)
    return "mine"


def upload(bucket: BucketServer, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            bucket.write(f"foreign/deep/{path.name}", path.read_bytes())


def batches(spec: str, **more: Any) -> list[Any]:
    docs = jaxdata.open_dataset(spec, eod_id=0).source("train", source_name(spec))
    loader = jaxdata.Loader(jaxdata.pack(docs, seq_len=64), batch_size=8, **more)
    found = list(loader)
    loader.close()
    return found


@pytest.mark.parametrize("kind", ["megatron", "gpts", "nanogpt", "datatrove"])
def test_rows_are_those_of_local_files(bucket: BucketServer, tmp_path: Path, kind: str) -> None:
    name = written(tmp_path / "data", kind)
    upload(bucket, tmp_path / "data")
    here, there = (f"{kind}:{at}/{name}" for at in (tmp_path / "data", bucket.url("foreign/deep")))
    assert_same_batches(batches(there), batches(here))
    opened = (jaxdata.open_dataset(spec, eod_id=0) for spec in (here, there))
    prints = {each.source("train", name).fingerprint for each in opened}
    assert len(prints) == 1, "a run goes on when its data moves to a bucket"


def test_an_index_is_read_once_a_host(bucket: BucketServer, tmp_path: Path) -> None:
    written(tmp_path / "data", "megatron")
    upload(bucket, tmp_path / "data")
    url = bucket.url("foreign/deep/mine")
    jaxdata.open_dataset(f"megatron:{url}")
    bucket.clear()
    jaxdata.open_dataset(f"megatron:{url}")
    read = [each for each in bucket.requests if each.method == "GET" and each.sent > 500]
    assert not [each for each in read if each.object.endswith(".idx")]
    bucket.write("foreign/deep/mine.idx", bucket.read("foreign/deep/mine.idx")[:-8])
    with pytest.raises(DatasetError, match=r"mine\.idx is damaged"):
        jaxdata.open_dataset(f"megatron:{url}")
    bucket.delete("foreign/deep/mine.idx")
    with pytest.raises(DatasetError, match=r"deep/mine\.idx is missing: megatron:.*mine is"):
        jaxdata.open_dataset(f"megatron:{url}")
