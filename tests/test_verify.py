"""What `jaxdata verify` finds, and how it says it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.errors import DatasetError
from jaxdata.format.storage import open_store
from jaxdata.format.verify import verify
from jaxdata.testing import write_dataset
from tests.test_cli import run
from tests.test_convert import records, write_lines
from tests.test_convert import run as convert


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of several shards, documents in several records, and a tokenizer with a file."""
    folder = tmp_path_factory.mktemp("whole")
    lines = ["the quick brown fox jumps over a lazy dog, again and again"] * 50
    tokenizers.train(lines, folder / "a.model", vocab_size=300)
    words = (f"line {i} " * (i % 17) for i in range(400))
    corpus = write_lines(folder / "in" / "a.jsonl", [*records(*words), b"{bad"])
    options = {"unit_bytes": 8_000, "tokenizer": f"sentencepiece:{folder / 'a.model'}"}
    for source in ("web", "code"):
        convert(corpus, folder / "out", source=source, record_tokens=40, **options)
    return folder / "out"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def found(path: Path) -> list[tuple[str, str]]:
    return [(one.file, one.what) for one in verify(path).damage]


def test_a_whole_dataset_is_whole(whole: Path) -> None:
    result = verify(whole)
    assert result.whole
    assert not result.unfinished
    assert result.documents == 800
    assert result.shards > 8
    assert str(result).startswith(f"{whole}: whole (2 sources, ")


def test_progress_counts_the_bytes_of_all_shards(whole: Path) -> None:
    calls: list[tuple[int, int]] = []
    result = verify(whole, progress=lambda *call: calls.append(call))
    assert calls[-1] == (result.bytes, result.bytes)
    assert calls == sorted(calls)


def test_masks_and_other_stores(tmp_path: Path) -> None:
    documents = {"train/a": [np.arange(n) % 9 for n in (1, 500, 3)]}
    masks = {"train/a": [np.ones(n, np.uint8) for n in (1, 500, 3)]}
    write_dataset(tmp_path / "a", documents, masks, record_tokens=100)
    assert verify(tmp_path / "a").whole
    local, remote = open_store(tmp_path / "a"), open_store("memory://verify/a")
    for name in local.list():
        remote.write(name, local.read(name) or b"")
    assert verify("memory://verify/a").whole
    shard = bytearray(local.read("train/a/00000-00000.array_record") or b"")
    shard[-9] ^= 1
    remote.write("train/a/00000-00000.array_record", bytes(shard))
    remote.delete("train/a/index/anchor/")
    files = [one.file for one in verify("memory://verify/a").damage]
    assert files == ["train/a/index/anchor", "train/a/00000-00000.array_record"]


@settings(max_examples=100)
@given(st.data())
def test_any_flipped_bit_is_found_and_named(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = sorted(open_store(whole).list())
    checked = [n for n in names if n.endswith(("_record", ".model")) or "/c/" in n]
    name = data.draw(st.sampled_from([n for n in checked if "origin" not in n]))
    content = bytearray((whole / name).read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    copy = tmp_path_factory.mktemp("flipped") / "copy"
    shutil.copytree(whole, copy, copy_function=_link)
    (copy / name).unlink()
    (copy / name).write_bytes(content)
    damaged = verify(copy, threads=1).damage
    assert {one.file for one in damaged} >= {name.partition("/c/")[0]}
    shutil.rmtree(copy)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda copy: (copy / name).write_bytes(edit((copy / name).read_bytes())) and None


def set_column(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def work(copy: Path) -> None:
        store = open_store(copy)
        store.write_array(name, edit(store.read_array(name).copy()))

    return work


def swap(column: np.ndarray) -> np.ndarray:
    column[[40, 41]] = column[[41, 40]]
    return column


SHARD = "train/web/00000-00002.array_record"
LENGTH = "train/web/index/length"


@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (lambda copy: (copy / SHARD).unlink(), SHARD, "is missing"),
        (change(SHARD, lambda data: data[:-1]), SHARD, "it has 131,071 bytes, not 131,072"),
        (change(SHARD, lambda data: data + b"x"), SHARD, "it has 131,073 bytes, not 131,072"),
        (change(SHARD, lambda data: data[:-1] + b"x"), SHARD, "content differs from its checksum"),
        (lambda copy: (copy / "tokenizer/tokenizer.model").unlink(), "tokenizer/", "is missing"),
        (set_column(LENGTH, swap), LENGTH, "not those of the records in train/web/00000-0000"),
        (set_column(LENGTH, lambda column: column[1:]), LENGTH, "399 entries, not 400"),
        (set_column(LENGTH, lambda column: column + 1), LENGTH, "it adds up to"),
        (set_column("train/web/index/anchor", swap), "train/web/index/anchor", "not follow"),
        (
            set_column("train/web/index/origin_file", lambda column: column + 1),
            "train/web/index/origin_file",
            "more files than the 1 there are",
        ),
        (lambda copy: (copy / LENGTH / "c/0").unlink(), LENGTH, "is missing"),
        (lambda copy: (copy / LENGTH / "zarr.json").write_text("{"), LENGTH, "is damaged"),
        (
            change(
                "dataset.json", lambda data: data.replace(b'"documents": 400', b'"documents": 4')
            ),
            "dataset.json",
            "train/web has 4 documents, its shards together 400",
        ),
    ],
)
def test_damage_is_said_as_it_is(
    copy: Path, damage: Callable[[Path], None], file: str, says: str
) -> None:
    damage(copy)
    assert any(name.startswith(file) and says in what for name, what in found(copy)), found(copy)


def test_what_cannot_be_read_is_damage_and_no_traceback(copy: Path) -> None:
    (copy / SHARD).unlink()
    (copy / SHARD).mkdir()
    assert (SHARD, "it cannot be read: Is a directory") in found(copy)


def test_a_begun_conversion_is_no_damage(copy: Path) -> None:
    (copy / "val/web/work").mkdir(parents=True)
    (copy / "val/web/work/parameters.json").write_text("{}")
    result = verify(copy)
    assert result.whole
    assert "unfinished: val/web; the command that began it finishes it" in str(result)


def test_where_there_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not a dataset: it has no dataset\.json"):
        verify(tmp_path)


def test_the_command_says_it_and_exits_with_it(copy: Path) -> None:
    assert run("verify", copy).stdout.splitlines()[-1].startswith(f"{copy}: whole (2 sources")
    assert json.loads(run("verify", copy, "--json").stdout)["whole"]
    change(SHARD, lambda data: data[:-1])(copy)
    lines = run("verify", copy, "--threads", "1", status=1).stdout.splitlines()
    assert lines[0] == f"DAMAGED {SHARD}: it has 131,071 bytes, not 131,072"
    assert lines[1].startswith("restore these files from a copy; or convert the same input into")
    assert lines[2].startswith(f"{copy}: 1 damaged (2 sources, ")
    damage = json.loads(run("verify", copy, "--json", status=1).stdout)["damage"]
    assert damage == [{"file": SHARD, "what": "it has 131,071 bytes, not 131,072"}]
    (copy / "dataset.json").write_text("{")
    assert "dataset.json is damaged" in run("verify", copy, status=1).stderr
