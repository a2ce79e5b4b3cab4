"""Shards of side arrays: damage is found, copies have them, and manifests must make sense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError
from jaxdata.format.mirroring import mirror
from jaxdata.format.verify import verify
from jaxdata.testing import distinct_documents, write_dataset

LENGTHS = np.random.default_rng(1).integers(1, 70, 120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = distinct_documents(LENGTHS)
    side = {"train/web": {"weight": [each.astype(np.float32) for each in tokens]}}
    path = tmp_path_factory.mktemp("whole") / "d"
    write_dataset(path, {"train/web": tokens}, side=side, record_tokens=20, shard_documents=50)
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


SHARD = "train/web/00001-00000.weight.array_record"


@pytest.mark.parametrize("name", [SHARD, "train/web/index/weight.anchor/c/0"])
def test_a_flipped_byte_is_found(copy: Path, name: str) -> None:
    assert verify(copy).whole
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    (damage,) = verify(copy).damage
    assert name.startswith(damage.file)


def test_a_missing_shard_is_found_and_named_by_reading(copy: Path) -> None:
    (copy / SHARD).unlink()
    assert [one.file for one in verify(copy).damage] == [SHARD]
    docs = jaxdata.open_dataset(copy).source("train", "web")
    assert docs.tokens(*(np.array([n]) for n in (60, 0, 1))).views.join()
    with pytest.raises(DatasetError, match=r"00001-00000\.weight\.array_record is missing"):
        docs[60]


def test_a_shard_of_other_documents_is_refused(copy: Path) -> None:
    shards = [copy / f"train/web/0000{n}-00000.weight.array_record" for n in (0, 1)]
    first = shards[0].read_bytes()
    shards[0].write_bytes(shards[1].read_bytes().ljust(len(first), b"\0"))
    docs = jaxdata.open_dataset(copy).source("train", "web")
    with pytest.raises(DatasetError, match=r"weight\.array_record: its records are not those"):
        docs[0]


def test_a_manifest_whose_side_shards_are_of_other_documents(copy: Path) -> None:
    fields = json.loads((copy / "dataset.json").read_bytes())
    fields["sources"]["train/web"]["side"]["weight"]["shards"].pop()
    del fields["sha256"]
    (copy / "dataset.json").write_text(json.dumps(fields))
    with pytest.raises(
        DatasetError, match="shards of its side array 'weight' hold other documents"
    ):
        jaxdata.open_dataset(copy)


def test_a_mirror_has_them(whole: Path, tmp_path: Path) -> None:
    done = mirror(whole, tmp_path / "b")
    assert done.shards == 6
    assert verify(tmp_path / "b").whole
    docs = jaxdata.open_dataset(tmp_path / "b").source("train", "web")
    assert all((docs[i]["weight"] == docs[i]["tokens"]).all() for i in range(len(docs)))
