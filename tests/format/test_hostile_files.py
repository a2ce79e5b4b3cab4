"""Files of a dataset that a stranger made to do harm: each is named, and nothing reads for ever."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.cli import main
from jaxdata.errors import DatasetError
from jaxdata.format.index import anchors
from jaxdata.format.records import RecordSpec
from jaxdata.format.storage import open_store
from jaxdata.format.verify import verify
from tests.format.strangers import (
    LENGTH,
    SHARD,
    edit_json,
    little_memory,
    read_all,
    set_value,
    write_small,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("hostile") / "d")


@pytest.fixture
def dataset(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "d")


def _replace(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def work(dataset: Path) -> None:
        (dataset / name).unlink()
        make(dataset / name)

    return work


def _sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


def _describe(chunk: int | None = None, **changes: Any) -> Callable[[Path], None]:
    def work(dataset: Path) -> None:
        file = dataset / LENGTH / "zarr.json"
        fields = json.loads(file.read_bytes())
        if chunk is not None:
            fields["chunk_grid"]["configuration"]["chunk_shape"] = [chunk]
        file.write_text(json.dumps(fields | changes))

    return work


def _column(name: str, array: np.ndarray) -> Callable[[Path], object]:
    return lambda dataset: open_store(dataset).write_array(f"train/web/index/{name}", array)


def _without_checksums(name: str, array: np.ndarray) -> Callable[[Path], object]:
    def work(dataset: Path) -> None:
        _column(name, array)(dataset)
        edit_json(dataset / "dataset.json", set_value("sources", "train/web", "checksums", to={}))

    return work


PIPE = "is a device or a pipe, not a plain file: the dataset is damaged, or made to do harm"
DAMAGED = f"{LENGTH}/zarr.json is damaged (ValueError('"
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the manifest is a pipe": (_replace("dataset.json", os.mkfifo), f"{{d}}/dataset.json {PIPE}"),
    "the manifest never ends": (
        _replace("dataset.json", lambda path: path.symlink_to("/dev/zero")),
        f"{{d}}/dataset.json {PIPE}",
    ),
    "the manifest is a folder": (
        _replace("dataset.json", lambda path: path.mkdir()),
        "{d}/dataset.json is a folder, expected a file: restore it from a copy",
    ),
    "the manifest is huge": (
        _replace("dataset.json", _sparse(2**40)),
        "{d}/dataset.json has 1,099,511,627,776 bytes, expected at most 1,073,741,824: it is not",
    ),
    "a shard is a pipe": (_replace(SHARD, os.mkfifo), f"{{d}}/{SHARD} {PIPE}"),
    "a shard never ends": (
        _replace(SHARD, lambda path: path.symlink_to("/dev/zero")),
        f"{{d}}/{SHARD} {PIPE}",
    ),
    "a shard is another file": (
        _replace(SHARD, lambda path: path.symlink_to(Path(np.__file__))),
        "{d}/" + SHARD,
    ),
    "a shard is empty": (_replace(SHARD, Path.touch), f"{{d}}/{SHARD} ends before byte "),
    "a column is a pipe": (_replace(f"{LENGTH}/c/0", os.mkfifo), f"{{d}}/{LENGTH}/c/0 {PIPE}"),
    "a description is a pipe": (
        _replace(f"{LENGTH}/zarr.json", os.mkfifo),
        f"{{d}}/{LENGTH}/zarr.json {PIPE}",
    ),
    "a description is huge": (
        _replace(f"{LENGTH}/zarr.json", _sparse(2**40)),
        f"{{d}}/{LENGTH}/zarr.json has 1,099,511,627,776 bytes, expected at most 65,536",
    ),
    "a description is deep": (
        lambda d: (d / LENGTH / "zarr.json").write_bytes(b"[" * 60_000),
        f"{{d}}/{LENGTH}/zarr.json is damaged (RecursionError(",
    ),
    "a shape without end": (
        _describe(shape=[2**60], chunk=2**60),
        f"{{d}}/{DAMAGED}1152921504606846976 entries in chunks of 1152921504606846976')",
    ),
    "chunks without end": (
        _describe(shape=[2**50], chunk=1),
        f"{{d}}/{DAMAGED}1125899906842624 chunks, more than 65536')",
    ),
    "a chunk beyond the shape": (
        _describe(chunk=2**40),
        f"{{d}}/{DAMAGED}20 entries in chunks of 1099511627776')",
    ),
    "a shape of many dimensions": (
        _describe(shape=[2, 10]),
        f"{{d}}/{LENGTH}/zarr.json is damaged (ValueError('too many values",
    ),
    "a shape of truth": (_describe(shape=[True], chunk=1), f"{{d}}/{DAMAGED}True entries in"),
    "objects": (
        _describe(data_type="object"),
        f"{{d}}/{LENGTH}/zarr.json is damaged (KeyError('object')",
    ),
    "texts": (
        _describe(data_type="str"),
        f"{{d}}/{LENGTH}/zarr.json is damaged (KeyError('str')",
    ),
    "an index that is too long": (
        _column("length", np.full(100_000, 7, np.uint32)),
        f"{{d}}/{LENGTH} has 100,000 entries, not 20: restore it from a copy, or convert the",
    ),
    "a chunk that is too long": (
        lambda d: os.truncate(d / LENGTH / "c/0", 2**40),
        f"{{d}}/{LENGTH}/c/0 has 1,099,511,627,776 bytes, expected at most 80: it is not what",
    ),
    "an index of another type": (
        _column("length", np.full(20, 7, np.uint64)),
        f"{{d}}/{LENGTH} is of uint64, not uint32: restore it from a copy, or convert the source",
    ),
    "origins that are too short": (
        _column("origin_row", np.zeros(3, np.uint64)),
        "{d}/train/web/index/origin_row has 3 entries, not 20: restore it from a copy",
    ),
    "an origin that there is not": (
        _column("origin_file", np.full(20, 9, np.uint32)),
        "{d}: the index of train/web is damaged at document 0 (IndexError('list index out of ",
    ),
    "lengths beyond memory": (
        _column("length", np.full(20, 2**32 - 1, np.uint32)),
        "{d}: the index of train/web is not what was written: jaxdata verify {d} names what is da",
    ),
    "lengths of nothing": (
        _column("length", np.zeros(20, np.uint32)),
        "{d}: the index of train/web is not what was written: jaxdata verify {d} names what is da",
    ),
    "places before the beginning": (
        _without_checksums("anchor", np.array([0, 2**64 - 2**20, 2**64 - 2**20], np.uint64)),
        "{d}: the index of train/web is damaged at document ",
    ),
    "places beyond the end": (
        _without_checksums("anchor", np.array([2**61, 0, 0], np.uint64)),
        "{d}: the index of train/web is damaged at document ",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_it_should_be_is_named(dataset: Path, name: str) -> None:
    harm, says = FILES[name]
    harm(dataset)
    with little_memory(), pytest.raises(DatasetError) as error:
        read_all(dataset)
    assert str(error.value).startswith(says.format(d=dataset))


@pytest.mark.parametrize("name", FILES)
def test_commands_end_and_say_it(
    dataset: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    FILES[name][0](dataset)
    with little_memory(), pytest.raises(SystemExit) as ended:
        main(["verify", str(dataset), "--threads", "1"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out.startswith("DAMAGED ") if out else f"{dataset}/dataset.json" in err
    with pytest.raises(SystemExit):
        main(["inspect", str(dataset)])


def test_lengths_with_their_checksum_that_are_not_those_of_the_records(dataset: Path) -> None:
    """A stranger's index and checksums agree with each other, but not with the shards."""
    store = open_store(dataset)
    lengths = store.read_array(LENGTH)[::-1].copy()
    spec = RecordSpec("uint16")
    sums = {
        "length": store.write_array(LENGTH, lengths),
        "anchor": store.write_array("train/web/index/anchor", anchors(lengths, spec)),
    }

    def change(fields: dict[str, Any]) -> None:
        entry = fields["sources"]["train/web"]
        entry["checksums"] |= sums
        at = 0
        for shard in entry["shards"]:
            shard["tokens"] = int(lengths[at : at + shard["documents"]].sum())
            at += shard["documents"]

    edit_json(dataset / "dataset.json", change)
    with pytest.raises(DatasetError) as error:
        read_all(dataset)
    assert str(error.value).startswith(f"{dataset}/train/web/0000")
    assert str(error.value).endswith(
        "its records are not those in the index of train/web; "
        f"jaxdata verify {dataset} names what is damaged"
    )
    assert not verify(dataset).whole


@pytest.mark.parametrize("content", [b"[" * 10**6, b"[]", b"7", b"\xff", b""])
def test_hashes_of_inputs_that_are_none_are_named(dataset: Path, content: bytes) -> None:
    (dataset / "train/web/inputs.json").write_bytes(content)
    with little_memory():
        ((file, what),) = [(one.file, one.what) for one in verify(dataset).damage]
    assert (file, what) == ("train/web/inputs.json", "its content differs from its checksum")
    (dataset / "train/web/inputs.json").unlink()
    _sparse(2**40)(dataset / "train/web/inputs.json")
    ((file, what),) = [(one.file, one.what) for one in verify(dataset).damage]
    assert file == "train/web/inputs.json"
    assert what.endswith(": it is not what its name says; restore it from a copy")


def test_records_of_a_token_do_not_fill_the_memory_of_verify(dataset: Path) -> None:
    """One document of 2^32 - 1 records, says the index, and the manifest agrees."""
    store, many = open_store(dataset), 2**32 - 1
    lengths = np.full(1, many, np.uint32)
    sums = {
        "length": store.write_array(LENGTH, lengths),
        "anchor": store.write_array("train/web/index/anchor", np.zeros(1, np.uint64)),
        "origin_file": store.write_array("train/web/index/origin_file", np.zeros(1, np.uint32)),
        "origin_row": store.write_array("train/web/index/origin_row", np.zeros(1, np.uint64)),
    }

    def change(fields: dict[str, Any]) -> None:
        fields["record_tokens"] = 1
        entry = fields["sources"]["train/web"]
        shard = entry["shards"][0] | {"documents": 1, "tokens": many, "records": many}
        entry |= {"documents": 1, "tokens": many, "shards": [shard], "checksums": sums}

    edit_json(dataset / "dataset.json", change)
    with little_memory():
        damage = {one.file: one.what for one in verify(dataset, threads=1).damage}
    assert damage[LENGTH] == f"its lengths are not those of the records in {SHARD}"


def test_a_shard_named_twice_is_read_once(dataset: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        shards = fields["sources"]["train/code"]["shards"]
        shards[0] = fields["sources"]["train/web"]["shards"][0]

    edit_json(dataset / "dataset.json", change)
    damage = [(one.file, one.what) for one in verify(dataset).damage]
    assert damage == [("dataset.json", f"it names {SHARD} 2 times")]


def test_a_link_out_of_the_folder_is_said(dataset: Path, tmp_path: Path) -> None:
    """Who links shards to another disk may; a stranger's archive should not."""
    shard = dataset / SHARD
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    (dataset / "train/code").rename(dataset / "train/other")
    (dataset / "train/code").symlink_to(dataset / "train/other")
    found = verify(dataset)
    assert found.whole
    assert found.links == (f"{SHARD} -> {tmp_path / 'elsewhere'}",)
    assert f"links to files outside the folder: {found.links[0]}" in str(found).splitlines()
    read_all(dataset)
