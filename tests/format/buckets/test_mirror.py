"""Copies of datasets: whole or not there, killed at any time, and never over something else."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.mirroring import mirror
from jaxdata.format.storage import open_store
from jaxdata.format.verify import verify
from jaxdata.testing import assert_same_batches, write_dataset
from jaxdata.testing.buckets import BucketServer, Faults, bucket_server
from tests.format.buckets.conftest import use

KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "6"))


def source(path: str | Path, shards: int = 6, seed: int = 1) -> None:
    chance = np.random.default_rng(seed)
    tokens = [chance.integers(1, 50_000, 50).astype(np.uint16) for _ in range(20 * shards)]
    masks = {"train/web": [chance.integers(0, 2, 50) for _ in tokens]}
    sources = {"train/web": tokens, "val/web": tokens[:5]}
    write_dataset(path, sources, masks, shard_documents=20)


def check(url: str | Path, like: str | Path) -> None:
    """It is whole, and has the same rows and manifest."""
    assert str(verify(url)).endswith(" MB)")
    assert verify(url).whole, verify(url)
    assert open_store(url).read("dataset.json") == open_store(like).read("dataset.json")
    loaders = [
        jaxdata.Loader(
            jaxdata.pack(jaxdata.open_dataset(path).source("train", "web"), seq_len=64),
            batch_size=4,
        )
        for path in (url, like)
    ]
    assert_same_batches(*loaders)
    for each in loaders:
        each.close()
    left = [name for name in open_store(url).list() if name.startswith(".")]
    assert not left


def test_every_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(tmp_path / "a")
    with bucket_server("gs") as gs, bucket_server("s3") as s3:
        use(gs, monkeypatch)
        use(s3, monkeypatch)
        places = [tmp_path / "a", "gs://bkt/ds", "s3://bkt/x/ds", "memory://ds", tmp_path / "b"]
        for before, after in pairwise(places):
            done = mirror(before, after)
            assert (done.kept, done.shards, done.documents) == (0, 7, 125)
            assert done.copied_bytes > 7 * 2**16
            check(after, tmp_path / "a")


def test_only_what_is_missing_or_differs_is_copied(tmp_path: Path) -> None:
    source(tmp_path / "a")
    first = mirror(tmp_path / "a", tmp_path / "b")
    again = mirror(tmp_path / "a", tmp_path / "b")
    assert (again.copied, again.copied_bytes, again.kept) == (0, 0, first.copied)
    shard = tmp_path / "b/train/web/00001-00000.array_record"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    (tmp_path / "b/train/web/00003-00000.array_record").unlink()
    chunk = tmp_path / "b/train/web/index/length/c/0"
    chunk.write_bytes(bytes(chunk.stat().st_size))
    (tmp_path / "b/train/web/index/anchor/zarr.json").unlink()
    assert mirror(tmp_path / "a", tmp_path / "b").copied == 4
    check(tmp_path / "b", tmp_path / "a")


def test_documents_that_were_appended_are_copied(tmp_path: Path) -> None:
    texts = [json.dumps({"text": f"document {k} " * 9}) + "\n" for k in range(90)]
    (tmp_path / "1.jsonl").write_text("".join(texts[:60]))
    (tmp_path / "2.jsonl").write_text("".join(texts[60:]))
    given = {"output": tmp_path / "a", "source": "web", "tokenizer": "bytes", "workers": 1}
    jaxdata.convert(tmp_path / "1.jsonl", **given)
    first = mirror(tmp_path / "a", tmp_path / "b")
    jaxdata.convert(tmp_path / "2.jsonl", append=True, **given)
    more = mirror(tmp_path / "a", tmp_path / "b")
    assert more.documents == 90
    assert more.kept == first.copied
    check(tmp_path / "b", tmp_path / "a")
    jaxdata.convert(tmp_path / "2.jsonl", **given | {"output": tmp_path / "c"})
    with pytest.raises(InputError, match=r"b holds another dataset than .*c \(its train/web is an"):
        mirror(tmp_path / "c", tmp_path / "b")


@pytest.mark.exhaustive
def test_killed_at_any_time_it_goes_on(server: BucketServer, tmp_path: Path) -> None:
    source(server.url("bkt/ds"), shards=40)
    server.faults = Faults(latency=0.02)
    command = [sys.executable, "-m", "jaxdata", "mirror", server.url("bkt/ds"), str(tmp_path / "b")]
    server.clear()
    chance, killed = random.Random(4), 0
    folder = tmp_path / "b/train/web"
    for number in range(KILLS):
        process = subprocess.Popen([*command, "--threads", "2"], stderr=-1, text=True)
        before = len(list(folder.glob("*.array_record")))
        while process.poll() is None and len(list(folder.glob("*.array_record"))) <= before:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.1 * (number + 1) / KILLS)
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
        killed += 1
        with pytest.raises(DatasetError, match=r"is not a dataset: it has no dataset.json"):
            jaxdata.open_dataset(tmp_path / "b")
    assert killed
    assert main_output(command)
    fetched = [each for each in server.requests if each.object.endswith(".array_record")]
    # Of what is published nothing is fetched again; of what was on its way, two at a time are.
    assert len(fetched) <= 41 + 2 * killed
    check(tmp_path / "b", server.url("bkt/ds"))
    assert not list((tmp_path / "b").rglob(".*"))


def main_output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r".*/b: [\d,]+ files \([\d.,]+ MB\) copied, [\d,]+ were there; whole: 41 shards, 805 docu"
        r"ments; took [\d.]+ s",
        line,
    ), line
    return line


def test_a_mirror_that_was_killed_trusts_its_notes(tmp_path: Path) -> None:
    """What it noted as copied is not read again: it was compared, and published whole."""
    source(tmp_path / "a")
    done = mirror(tmp_path / "a", tmp_path / "b")
    noted = {"train/web/00001-00000.array_record": _sha256_of(tmp_path / "a", 1)}
    (tmp_path / "b/dataset.json").rename(tmp_path / "b/was.json")
    (tmp_path / "b/.mirror").mkdir()
    (tmp_path / "b/was.json").rename(tmp_path / "b/.mirror/dataset.json")
    (tmp_path / "b/.mirror/done.json").write_text(json.dumps(noted))
    for number in (1, 2):
        shard = tmp_path / f"b/train/web/0000{number}-00000.array_record"
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    again = mirror(tmp_path / "a", tmp_path / "b")
    assert (again.copied, again.kept) == (1, done.copied - 1)
    assert [each.file for each in verify(tmp_path / "b").damage] == [*noted]


def _sha256_of(path: Path, shard: int) -> str:
    manifest = json.loads((path / "dataset.json").read_text())
    return str(manifest["sources"]["train/web"]["shards"][shard]["sha256"])


@pytest.mark.parametrize(
    "name", ["train/web/00002-00000.array_record", "train/web/index/length/c/0"]
)
def test_damage_of_the_source_is_not_copied(tmp_path: Path, name: str) -> None:
    source(tmp_path / "a")
    data = (tmp_path / "a" / name).read_bytes()
    (tmp_path / "a" / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(
        DatasetError, match=r"/a/train/web/.* is not what was written: its checksum"
    ):
        mirror(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b" / name).exists()
    assert not (tmp_path / "b/dataset.json").exists()
    (tmp_path / "a" / name).write_bytes(data)
    mirror(tmp_path / "a", tmp_path / "b")
    check(tmp_path / "b", tmp_path / "a")


def test_what_is_not_written_over(tmp_path: Path) -> None:
    source(tmp_path / "a")
    source(tmp_path / "other", seed=2)
    before = (tmp_path / "other/dataset.json").read_bytes()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").touch()
    for target, message in [
        ("other", r"other holds another dataset than .*a \(its train/web is another\): name an"),
        ("home", r"home is not empty, and no mirror \(thesis.tex is there\): name a folder"),
        ("a", r"a is .*a itself, or lies in it: name another"),
        ("a/b", r"a/b is .*a itself, or lies in it: name another"),
    ]:
        with pytest.raises(InputError, match=message):
            mirror(tmp_path / "a", tmp_path / target)
    assert (tmp_path / "other/dataset.json").read_bytes() == before
    with pytest.raises(DatasetError, match=r"home is not a dataset: it has no dataset.json"):
        mirror(tmp_path / "home", tmp_path / "b")


def test_a_target_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["mirror", str(tmp_path / "a"), str(tmp_path / "file/b")])
    assert ended.value.code == 1
    assert "Not a directory" in capsys.readouterr().err


def test_requests_that_fail_change_nothing(server: BucketServer, tmp_path: Path) -> None:
    source(tmp_path / "a")
    server.faults = Faults(unavailable=0.1, reset=0.05)
    mirror(tmp_path / "a", server.url("bkt/ds"))
    mirror(server.url("bkt/ds"), tmp_path / "b")
    assert server.counts.faults
    server.faults = ()
    check(tmp_path / "b", tmp_path / "a")
