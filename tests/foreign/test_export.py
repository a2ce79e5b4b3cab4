"""Export: what comes out is opened as it was, and what a format cannot hold is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.foreign import export as exporting
from jaxdata.testing import write_dataset
from tests import commands
from tests.dataset.documents.test_foreign import WRITERS, assert_holds, made, only_source
from tests.storage.buckets.conftest import server
from tests.storage.servers import BucketServer

__all__ = ["server"]


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of up to 60 tokens in parts of 50: some alone."""
    monkeypatch.setattr(exporting, "_TOKENS_AT_ONCE", 50)


def ours(folder: Path, documents: Any, masks: Any = None) -> Any:
    given = {} if masks is None else {"masks": {"train/web": masks}}
    return write_dataset(folder, {"train/web": documents}, **given).source("train", "web")


@pytest.mark.parametrize("kind", ["megatron", "megatron-i4", "gpts", "gpts-u4", "nanogpt"])
def test_theirs_to_ours_and_back_is_the_same_bytes(kind: str, tmp_path: Path) -> None:
    documents = made()
    if kind in ("megatron-i4", "gpts-u4"):
        documents[3][0] = 70_000
    (tmp_path / "was").mkdir()
    spec, format_ = WRITERS[kind](tmp_path / "was/old", documents), kind.split("-")[0]
    theirs = only_source(spec, **({"eod_id": 0} if format_ == "nanogpt" else {}))
    mine = ours(tmp_path / "ours", [theirs[k]["tokens"] for k in range(len(theirs))])
    for number, source in enumerate((theirs, mine)):
        (tmp_path / str(number)).mkdir()
        done = jaxdata.export(source, tmp_path / str(number) / "old", format=format_, eod_id=0)
        assert (done.documents, done.tokens) == (len(theirs), sum(map(len, documents)))
        assert done.bytes == sum(Path(file).stat().st_size for file in done.files)
        for file in done.files:
            assert Path(file).read_bytes() == (tmp_path / "was" / Path(file).name).read_bytes()


def test_ids_of_32_bits(tmp_path: Path) -> None:
    documents = [np.array([70_000, 1, 0]), np.array([2**31 - 1, 0])]
    source = ours(tmp_path / "ours", documents)
    for format_ in ("megatron", "gpts"):
        jaxdata.export(source, tmp_path / format_, format=format_)
        assert_holds(only_source(f"{format_}:{tmp_path / format_}"), documents)
    with pytest.raises(InputError, match="document 1 of train/web has the id 2147483647; the form"):
        jaxdata.export(source, tmp_path / "flat", format="nanogpt", eod_id=0)
    large = ours(tmp_path / "beyond", [np.array([2**31, 0], np.uint32)])
    with pytest.raises(InputError, match="has the id 2147483648; the format holds ids up to 21474"):
        jaxdata.export(large, tmp_path / "large", format="megatron")
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(("fl", "la"))} == set()


def test_documents_are_exported_to_a_bucket(server: BucketServer, tmp_path: Path) -> None:
    documents, url = jaxdata.ArrayDocuments(made()), server.url("rows/deep/mine")
    local = jaxdata.export(documents, tmp_path / "mine", format="megatron")
    remote = jaxdata.export(documents, url, format="megatron")
    assert (remote.files, remote.bytes) == ([f"{url}.bin", f"{url}.idx"], local.bytes)
    for suffix in (".bin", ".idx"):
        assert server.read(f"rows/deep/mine{suffix}") == (tmp_path / f"mine{suffix}").read_bytes()
    with pytest.raises(InputError, match=r"/mine\.(bin|idx) exists already: choose another"):
        jaxdata.export(documents, url, format="megatron")


@pytest.mark.parametrize("where", [0, 30, 50])
def test_other_masks_are_refused(where: int, tmp_path: Path) -> None:
    documents = [np.arange(60), np.arange(60)]
    masks = [np.ones(60, bool), np.ones(60, bool)]
    masks[1][where] = False
    if where != 50:  # that one is the first of a part
        masks[1][: where // 2] = 0
    source = ours(tmp_path / "ours", documents, masks)
    if where:
        with pytest.raises(InputError, match="document 1 of train/web masks other tokens"):
            jaxdata.export(source, tmp_path / "old", format="gpts")
        assert not list(tmp_path.glob("old*"))
    else:
        jaxdata.export(source, tmp_path / "old", format="gpts")
        theirs = only_source(f"gpts:{tmp_path}/old")
        assert [theirs[n]["loss_mask"].tolist() for n in (0, 1)] == [m.tolist() for m in masks]
    for format_ in ("megatron", "nanogpt"):
        with pytest.raises(InputError, match="stores loss masks, which this format cannot hold"):
            jaxdata.export(source, tmp_path / "other", format=format_, eod_id=0)


ENDS: list[Any] = [
    ([[1, 0], [2, 3], [4, 0]], 0, "document 1 of documents does not end with its only EOD, 0"),
    ([[1, 0], [2, 0, 3, 0]], 0, "document 1 of documents does not end with its only EOD"),
    ([[1, 0], [], [4, 0]], 0, "document 1 of documents does not end with its only EOD"),
    ([[1, 0]], None, "separate documents by EOD: pass its id as --eod-id or eod_id="),
    ([[1, 0], range(1, 121)], 0, ""),  # the last may lack it
]


@pytest.mark.parametrize(("documents", "eod", "expected"), ENDS)
def test_nanogpt_needs_eod(documents: Any, eod: int | None, expected: str, tmp_path: Path) -> None:
    source, given = jaxdata.ArrayDocuments(documents), {"format": "nanogpt", "eod_id": eod}
    if not expected:
        jaxdata.export(source, tmp_path / "flat", **given)
        read = only_source(f"nanogpt:{tmp_path}/flat", eod_id=0)
        assert_holds(read, [np.asarray(each) for each in documents])
        return
    with pytest.raises(InputError, match=expected):
        jaxdata.export(source, tmp_path / "flat", **given)
    assert not list(tmp_path.glob("flat*"))


def test_empty_documents_and_side_arrays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = only_source(WRITERS["megatron"](tmp_path / "was", [np.array([1]), np.array([], int)]))
    side = jaxdata.ArrayDocuments([[5, 6, 0]], name="web", side={"weight": [np.ones(3)]})
    for format_ in ("megatron", "gpts"):
        for given, lengths in (source, [1, 0]), (jaxdata.ArrayDocuments([]), []), (side, [3]):
            output = tmp_path / f"{format_}{len(lengths)}{sum(lengths)}"
            jaxdata.export(given, output, format=format_)
            assert only_source(f"{format_}:{output}").lengths.tolist() == lengths
    assert "web: side arrays are not exported (weight)" in caplog.text


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old.idx").write_text("mine")
    one, old = jaxdata.ArrayDocuments([[1]]), tmp_path / "old"
    for output, format_, says in (
        (old, "megatron", r"old.idx exists already: choose another output"),
        ("https://host/b/mine", "megatron", "cannot open 'https://host/b': expected a local path"),
        (old, "hdf5", r"format='hdf5': expected megatron \| gpts \| nanogpt"),
    ):
        with pytest.raises(InputError, match=says):
            jaxdata.export(one, output, format=format_)
    assert (tmp_path / "old.idx").read_text() == "mine"


def test_the_command(tmp_path: Path) -> None:
    documents = made()
    write_dataset(tmp_path / "ours", {"train/web": documents, "train/code": documents[:3]})
    given = ["export", tmp_path / "ours", "--format", "nanogpt", "--output", tmp_path / "flat"]
    assert "has code, web: choose a --source" in commands.run(*given, status=1).stderr
    assert commands.run(*given, "--source", "web").stdout.startswith("40 documents, ")
    assert_holds(only_source(f"nanogpt:{tmp_path}/flat", eod_id=0), documents)
    theirs = ["export", f"nanogpt:{tmp_path}/flat", "--eod-id", "0", "--format", "megatron"]
    commands.run(*theirs, "--output", tmp_path / "old")
    assert_holds(only_source(f"megatron:{tmp_path}/old"), documents)
