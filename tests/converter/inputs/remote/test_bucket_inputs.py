"""Inputs in buckets: the dataset is that of local files, whatever the lines and objects do."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter.conversion import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.storage import objects as ranged_file
from jaxdata.storage import open_store
from jaxdata.testing import write_dataset
from tests.converter.inputs.remote.conftest import convert, lines, upload, write_corpus
from tests.dataset.trees import tree
from tests.storage.servers import BucketServer, Faults


def test_a_dataset_does_not_depend_on_where_its_inputs_are_nor_on_lines_that_break(
    bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_file, "BLOCK", 2**14)
    write_corpus(tmp_path / "raw")
    upload(bucket, tmp_path / "raw", "bkt/deep/raw")
    convert(tmp_path / "raw", tmp_path / "local")
    bucket.faults = Faults(unavailable=0.05, reset=0.03, cut=0.03)
    convert(bucket.url("bkt/deep/raw/"), tmp_path / "remote")
    expected = tree(tmp_path / "local")
    assert tree(tmp_path / "remote") == expected
    assert sum(name.endswith(".array_record") for name in expected) > 20


def test_what_a_url_or_a_list_in_a_bucket_stands_for(bucket: BucketServer, tmp_path: Path) -> None:
    for name in ("a.jsonl", "sub/b.jsonl.gz", "c.jsonl.zst", "d.txt", ".x/e.txt", "sub/f.pdf"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(lines(2, name))
    upload(bucket, tmp_path / "raw", "bkt/raw")
    three = ["raw/a.jsonl", "raw/sub/b.jsonl.gz", "raw/c.jsonl.z*"]
    for given in (["raw"], ["raw/"], ["raw/**/*.jsonl*"], three):
        local = find_inputs([str(tmp_path / one) for one in given])
        remote = find_inputs([bucket.url(f"bkt/{one}") for one in given])
        assert [file[1:5] for file in remote] == [file[1:5] for file in local]
        assert remote[0].where == bucket.url("bkt/raw/a.jsonl")
    bucket.write(
        "bkt/lists/one", f"# a list\n../raw/a.jsonl\n{bucket.url('bkt/raw/sub/')}\n".encode()
    )
    (tmp_path / "list").write_text(bucket.url("bkt/raw/c*.zst"))
    found = find_inputs([], [bucket.url("bkt/lists/one"), tmp_path / "list"])
    assert [file.name for file in found] == ["a.jsonl", "c.jsonl.zst", "sub/b.jsonl.gz"]
    assert find_inputs(bucket.url("bkt/raw/d.txt"))[0].open().read() == lines(2, "d.txt")
    state = b'{"_data_files": [{"filename": "f.jsonl"}]}'
    others = {"state.json": state, "dataset_info.json": b"{}", "cache-1.jsonl": b""}
    for name, data in {"f.jsonl": lines(1, "f"), **others}.items():
        bucket.write(f"bkt/saved/{name}", data)
    assert [file.name for file in find_inputs(bucket.url("bkt/saved"))] == ["f.jsonl"]


def test_what_cannot_be_found_is_said(s3: BucketServer) -> None:
    s3.write("bkt/a.pdf", b"1,2")
    s3.write("bkt/a.jsonl", lines(1, "a"))
    s3.write("bkt/folder/", b"")
    write_dataset("s3://bkt/ds", {"train/web": [[1, 0]]})
    for url, said in {
        "s3://bkt/none": "there is no such object, and none below s3://bkt/none/",
        "s3://bkt/*.txt": "s3://bkt/*.txt: no object matches this glob",
        "s3://b*/a.jsonl": "s3://b*/a.jsonl: a glob begins after the name of a bucket",
        "s3://bkt/a.pdf": "s3://bkt/a.pdf: unsupported file type; expected .csv",
        "s3://bkt/ds/": "s3://bkt/ds is a dataset of jaxdata, not text",
        "ftp://bkt/a.jsonl": "cannot read 'ftp://bkt/a.jsonl': expected a path on this machine",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            find_inputs(url)
    assert [file.where for file in find_inputs("s3://bkt")] == ["s3://bkt/a.jsonl"]
    with pytest.raises(InputError, match=r"--files-from \w+://bkt/none cannot be read \(.*no such"):
        find_inputs([], ["s3://bkt/none"])
    s3.faults = Faults(forbidden=1.0)
    said = r"\w+://bkt/a\.jsonl cannot be read: .*403.* may not read it: use others, or let these"
    with pytest.raises(InputError, match=said):
        find_inputs("s3://bkt/a.jsonl")


def test_inputs_of_several_places(s3: BucketServer, tmp_path: Path) -> None:
    s3.write("bkt/raw/a.jsonl.gz", gzip.compress(lines(2, "bucket")))
    s3.write("bkt/raw/b.jsonl", lines(3, "more"))
    for name in ("bkt/raw/a.jsonl.gz", "z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(lines(2, "here"))
    found = find_inputs(["s3://bkt/raw", tmp_path / "z.jsonl"])
    assert [file.name for file in found] == ["bkt/raw/a.jsonl.gz", "bkt/raw/b.jsonl", "z.jsonl"]
    assert found[0].where == "s3://bkt/raw/a.jsonl.gz"
    convert(["s3://bkt/raw", f"file://{tmp_path}/z.jsonl"], tmp_path / "out")
    read = jaxdata.open_dataset(tmp_path / "out").source("train", "web")
    assert (len(read), read.origin(6)[0]) == (7, "z.jsonl")
    with pytest.raises(InputError, match=r"s3://bkt/raw/a\.jsonl\.gz and .* have the same name"):
        find_inputs(["s3://bkt/raw/a.jsonl.gz", tmp_path])
    store = open_store("memory://test_bucket_inputs")
    store.write("raw/a.jsonl", lines(2, "a"))
    assert len(list(texts("memory://test_bucket_inputs/raw/"))) == 2


def middle_changed(data: bytes) -> bytes:
    return data[:100_000] + data[100_000:].replace(b"document", b"DOCUMENT", 1)


def test_an_object_that_changes_is_noticed_while_it_is_read_and_afterwards(
    s3: BucketServer, tmp_path: Path
) -> None:
    data = lines(900, "a")
    s3.write("bkt/a.jsonl", data)
    (file,) = find_inputs("s3://bkt/a.jsonl")
    convert("s3://bkt/a.jsonl", tmp_path / "out")
    s3.write("bkt/a.jsonl", middle_changed(data))
    with pytest.raises(InputError, match=r"'a\.jsonl' changed since it was converted"):
        convert("s3://bkt/a.jsonl", tmp_path / "out")
    for change in (lambda: None, lambda: s3.delete("bkt/a.jsonl")):
        change()
        said = pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil")
        with file.open() as opened, said:
            opened.read()
