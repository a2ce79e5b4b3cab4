"""Every file of a finished dataset, and of materialised rows, damaged: `jaxdata verify` says which.

Nothing is left out: a file that is added to the format is damaged here without being named.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import main
from jaxdata.errors import DatasetError
from jaxdata.format.history import HISTORY
from jaxdata.format.input_hashes import is_hashes_name
from jaxdata.format.storage import local, open_store
from jaxdata.format.storage.zarr import describe
from jaxdata.format.verify import verify
from jaxdata.format.verify.damage import damage_of_cached
from jaxdata.look.integrity import check_dataset
from jaxdata.materializer.verify_rows import verify_rows
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.test_convert import run as convert
from tests.converter.test_convert import write_lines


def record(number: int) -> bytes:
    return json.dumps({"text": f"{number} a b " * (number % 9), "url": f"http://{number}"}).encode()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, one in splits, in two generations, from archives, with kept fields."""
    folder = tmp_path_factory.mktemp("damage")
    tokenizers.train(["a b c d e f g"] * 50, folder / "a.model", vocab_size=270)
    tokenizer = f"sentencepiece:{folder / 'a.model'}"
    options = {"keep": ("url",), "split_ratio": "train=8,val=2", "append": True}
    for name, first in (("a", 0), ("b", 200)):
        lines = [*map(record, range(first, first + 200)), b"{bad"]
        file = write_lines(folder / f"{name}.jsonl", lines)
        (folder / "in").mkdir(exist_ok=True)
        with tarfile.open(folder / "in" / f"{name}.tar", "w") as archive:
            archive.add(file, file.name)
        convert(folder / "in", folder / "out", source="web", tokenizer=tokenizer, **options)
    convert(folder / "a.jsonl", folder / "out", source="code", tokenizer=tokenizer)
    return folder / "out"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged_rows")
    documents = distinct_documents([40] * 60)
    docs = write_dataset(folder / "d", {"train/web": documents}).source("train", "web")
    packed = jaxdata.pack(docs, seq_len=32)
    jaxdata.materialize(packed, folder / "rows", shard_rows=30, workers=1)
    return folder / "rows"


def flipped(data: bytes) -> bytes:
    """The lowest bit of the middle byte: most digits and letters become others."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def names_of(folder: Path) -> list[str]:
    """All files but the history, which only says how they came about."""
    return [name for name in open_store(folder).list() if name != HISTORY]


def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `jaxdata verify` prints of damage; it must exit with 1."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(folder), "--threads", "1"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    return out + err


def part_of(name: str) -> str:
    """What a file is called by: of a column, its folder."""
    return name.partition("/c/")[0].removesuffix("/zarr.json")


def test_the_dataset_has_every_kind_of_file(dataset: Path) -> None:
    kinds = {Path(part_of(name)).name for name in names_of(dataset)}
    columns = {"length", "anchor", "origin_file", "origin_row", "kept", "kept_end"}
    columns |= {"member", "member_end", "member_file", "member_row"}
    assert kinds >= columns | {"dataset.json", "tokenizer.model", "quarantine.jsonl"}
    assert {"quarantine-1.jsonl", "00000-00000.array_record"} <= kinds
    assert any("/index-1/" in name for name in names_of(dataset))
    assert {*json.loads((dataset / "dataset.json").read_bytes())["sources"]} == {
        "train/web",
        "val/web",
        "train/code",
    }
    assert verify(dataset).whole
    assert verify(dataset).unchecked == ()


@pytest.mark.parametrize("which", ["dataset", "rows"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(flipped(path.read_bytes())), id="flipped"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-2]), id="short"),
        pytest.param(lambda path: path.unlink(), id="gone"),
    ],
)
def test_every_file_is_named_that_is_damaged(
    which: str,
    damage: Callable[[Path], object],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder: Path = request.getfixturevalue(which)
    shutil.copytree(folder, tmp_path / "copy")
    for name in names_of(folder):
        damage(tmp_path / "copy" / name)
        if is_hashes_name(name) and not (tmp_path / "copy" / name).exists():
            assert verify(tmp_path / "copy").whole  # nobody needs it
            shutil.copy(folder / name, tmp_path / "copy" / name)
            continue
        lines = said(tmp_path / "copy", capsys).splitlines()
        if is_hashes_name(name):  # its remedy is its own, and in its line
            lines.insert(1, "restore these files from a copy")
        if name in ("dataset.json", "rows.json") and lines[0].startswith("error: "):
            assert name in lines[0], lines
            assert len(lines) == 1
        else:
            assert [line.split(": ")[0] for line in lines[:-2]] == [f"DAMAGED {part_of(name)}"]
            assert lines[-2].startswith("restore these files from a copy")
        shutil.copy(folder / name, tmp_path / "copy" / name)


def test_damaged_hashes_of_inputs_may_be_deleted(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    path = tmp_path / "copy/train/code/inputs.json"
    path.write_bytes(flipped(path.read_bytes()))
    assert said(tmp_path / "copy", capsys).startswith("DAMAGED train/code/inputs.json: ")
    path.unlink()
    assert verify(tmp_path / "copy").whole


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("which", ["dataset", "rows"])
def test_any_flipped_bit_is_found_and_named(
    which: str, request: pytest.FixtureRequest, data: st.DataObject
) -> None:
    folder: Path = request.getfixturevalue(which)
    name = data.draw(st.sampled_from(names_of(folder)))
    content = (folder / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    try:
        (folder / name).write_bytes(with_bit(content, bit))
        assert part_of(name) in damaged(folder)
    finally:
        (folder / name).write_bytes(content)


def with_bit(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(folder: Path) -> list[str]:
    """The files that are damaged; of one that cannot be read the error, which names it."""
    check = verify_rows if (folder / "rows.json").exists() else verify
    try:
        return [one.file for one in check(folder, threads=1).damage]
    except DatasetError as error:
        return [name for name in ("dataset.json", "rows.json") if f"/{name} " in str(error)]


def test_a_damaged_plan_is_made_again(dataset: Path, tmp_path: Path) -> None:
    """A plan is no part of what was written: verify leaves it to those who read it."""
    shutil.copytree(dataset, tmp_path / "copy")
    documents = jaxdata.open_dataset(tmp_path / "copy").source("train", "web")
    rows = len(jaxdata.pack(documents, seq_len=32))
    (plan,) = tmp_path.glob("copy/plans/*.npy")
    content = plan.read_bytes()
    for damaged in (flipped(content), content[:-1], content[:-32], b""):
        plan.write_bytes(damaged)
        assert len(jaxdata.pack(documents, seq_len=32)) == rows
        assert plan.read_bytes() == content


def test_a_damaged_order_of_megatron_is_to_be_deleted(
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_SCAN_BYTES", 50)
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    documents = jaxdata.open_dataset(copy).source("train", "web")
    assert len(jaxdata.megatron.gpt(documents, seq_len=8))
    (order,) = tmp_path.glob("copy/plans/megatron-*")
    assert verify(copy).whole
    content = order.read_bytes()
    for damaged in (flipped(content), content[:-1], content + b"x", b""):
        order.write_bytes(damaged)
        lines = said(copy, capsys).splitlines()
        assert lines[0] == (
            f"DAMAGED plans/{order.name}: its content differs from its checksum; delete it; "
            "it is computed again when needed"
        )
        assert len(lines) == 2
    order.unlink()
    assert verify(copy).whole
    assert damage_of_cached(open_store(copy), f"plans/{order.name}") == []
    (folder,) = damage_of_cached(open_store(copy), "plans")
    assert str(folder).startswith("plans: it cannot be read; delete it; it is")


@pytest.mark.parametrize("column", ["origin_file", "kept", "member"])
def test_what_is_read_of_a_damaged_column_is_no_traceback(
    dataset: Path, tmp_path: Path, column: str
) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    file = tmp_path / "copy/train/web/index-1" / column / "c/0"
    file.write_bytes(b"\x80" * file.stat().st_size)
    documents = jaxdata.open_dataset(tmp_path / "copy").source("train", "web")
    says = "the index of train/web is damaged at document 2 .*; jaxdata verify names the"
    with pytest.raises(DatasetError, match=says):
        documents.kept(2) if column == "kept" else documents.origin(2)


def test_validate_sees_a_damaged_tokenizer(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    file = tmp_path / "copy/tokenizer/tokenizer.model"
    file.write_bytes(flipped(file.read_bytes()))
    opened = jaxdata.open_dataset(tmp_path / "copy")
    checks = check_dataset(opened, ["train/web", "train/code"], lambda _done, _all: None)
    assert {check.name: check.holds for check in checks} == {
        **{"manifest": True, "tokenizer": False, "index": True, "shards": True}
    }


class OneFile:
    """As much of a store as the description of an array is read from."""

    url = "somewhere"

    def __init__(self, content: bytes) -> None:
        self.read = {"a/zarr.json": content}.get


@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_no_bit_of_the_description_of_an_array_may_change(tmp_path: Path, dtype: str) -> None:
    store = open_store(tmp_path)
    store.write_array("a", np.arange(9, dtype=dtype))
    content = store.read("a/zarr.json") or b""
    unseen = []
    for bit in range(8 * len(content)):
        with suppress(DatasetError):
            if describe(OneFile(with_bit(content, bit)), "a") == describe(store, "a"):
                unseen.append(with_bit(content, bit))
    assert not unseen
