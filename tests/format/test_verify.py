"""What `jaxdata verify` finds, and how it says it."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import main
from jaxdata.converter import merged_receipts as merged
from jaxdata.errors import DatasetError
from jaxdata.format import index
from jaxdata.format.manifest import read_manifest, update_manifest
from jaxdata.format.records import RecordSpec
from jaxdata.format.storage import open_store
from jaxdata.format.verify import Damage, verify
from jaxdata.format.verify.checks import run_checks
from jaxdata.testing import write_dataset
from tests.converter.here import run_here
from tests.converter.test_convert import records, write_lines
from tests.converter.test_convert import run as convert
from tests.format.trees import tree


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of several shards, documents in several records, and a tokenizer with a file."""
    folder = tmp_path_factory.mktemp("whole")
    lines = ["the quick brown fox jumps over a lazy dog, again and again"] * 50
    tokenizers.train(lines, folder / "a.model", vocab_size=300)
    words = (f"line {i} " * (i % 17) for i in range(400))
    corpus = write_lines(folder / "in" / "a.jsonl", [*records(*words), b"{bad"])
    options = {"unit_bytes": 8_000, "tokenizer": f"sentencepiece:{folder / 'a.model'}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged, "_PIECE_BYTES", 16)  # of quarantined records
        for source in ("web", "code"):
            convert(corpus, folder / "out", source=source, record_tokens=40, **options)
    return folder / "out"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def forget_checksums(dataset: Path) -> None:
    """Make the manifest what it was before columns had checksums."""
    fields = json.loads((dataset / "dataset.json").read_bytes())
    del fields["sha256"], fields["files"]
    for entry in fields["sources"].values():
        del entry["checksums"]
    (dataset / "dataset.json").write_text(json.dumps(fields))


@pytest.fixture
def older(copy: Path) -> Path:
    forget_checksums(copy)
    return copy


def found(path: Path) -> list[tuple[str, str]]:
    return [(one.file, one.what) for one in verify(path).damage]


def test_a_whole_dataset_is_whole(whole: Path) -> None:
    result = verify(whole)
    assert result.whole
    assert not result.unfinished
    assert result.counts["documents"] == 800
    assert result.counts["shards"] > 8
    assert str(result).startswith(f"{whole}: whole (2 sources, ")


def test_progress_counts_the_bytes_of_all_shards(whole: Path) -> None:
    calls: list[tuple[int, int]] = []
    result = verify(whole, progress=lambda *call: calls.append(call))
    assert calls[-1] == (result.counts["bytes"],) * 2
    assert calls == sorted(calls)


def test_so_many_files_are_read_at_a_time() -> None:
    three = threading.Barrier(3, timeout=30)

    def check() -> list[Damage]:
        three.wait()
        return []

    assert run_checks([(1, check)] * 3, 3, None) == ()


def test_who_interrupts_it_does_not_wait_for_the_rest() -> None:
    done: list[int] = []

    def check() -> list[Damage]:
        time.sleep(0.01)
        done.append(1)
        return []

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_checks([(1, check)] * 200, 1, interrupt)
    assert len(done) < 200


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


def gather(column: np.ndarray) -> np.ndarray:
    """As many tokens, in other records."""
    column[20] += (column[:20] - 1).sum()
    column[:20] = 1
    return column


SHARD = "train/web/00000-00002.array_record"
LENGTH = "train/web/index/length"


@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (lambda copy: (copy / SHARD).unlink(), SHARD, "is missing"),
        (change(SHARD, lambda data: data[:-1]), SHARD, "it has 131,071 bytes, not 131,072"),
        (change(SHARD, lambda data: data + b"x"), SHARD, "it has more than 131,072 bytes"),
        (change(SHARD, lambda data: data[:-1] + b"x"), SHARD, "content differs from its checksum"),
        (lambda copy: (copy / "tokenizer/tokenizer.model").unlink(), "tokenizer/", "is missing"),
        (set_column(LENGTH, swap), LENGTH, "its content differs from its checksum"),
        (set_column(LENGTH, lambda column: column[1:]), LENGTH, "it has 399 entries, not 400"),
        (
            set_column(LENGTH, lambda column: column.astype(np.uint64)),
            LENGTH,
            "it is of uint64, not uint32",
        ),
        (lambda copy: (copy / LENGTH / "c/0").unlink(), LENGTH, "is missing"),
        (change(f"{LENGTH}/c/0", lambda data: data[1:]), LENGTH, "c/0 has 1,599 bytes, not 1,600"),
        (change(f"{LENGTH}/c/0", lambda data: data + b"x"), LENGTH, "has more than 1,600 bytes"),
        (lambda copy: (copy / LENGTH / "zarr.json").write_text("{"), LENGTH, "is damaged"),
        (
            change("dataset.json", lambda data: data.replace(b'ts": 400', b'ts": 4')),
            "dataset.json",
            "its content differs from its checksum, so what it says of other files may be wrong",
        ),
    ],
)
def test_damage_is_said_as_it_is_and_of_a_file_once(
    copy: Path, damage: Callable[[Path], None], file: str, says: str
) -> None:
    damage(copy)
    ((name, what),) = found(copy)
    assert name.startswith(file)
    assert says in what


@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (set_column(LENGTH, swap), LENGTH, "not those of the records in train/web/00000-0000"),
        (set_column(LENGTH, lambda column: column + 1), LENGTH, "it adds up to"),
        (set_column(LENGTH, gather), LENGTH, "it adds up to"),
        (set_column("train/web/index/anchor", swap), "train/web/index/anchor", "not follow"),
        (
            set_column("train/web/index/origin_file", lambda column: column + 1),
            "train/web/index/origin_file",
            "more files than the 1 there are",
        ),
        (
            change("dataset.json", lambda data: data.replace(b'ts": 400', b'ts": 4')),
            "dataset.json",
            "has 4 documents, its shards together 400",
        ),
        (lambda copy: (copy / LENGTH / "c/0").unlink(), LENGTH, "is missing"),
    ],
)
def test_what_older_datasets_show(
    older: Path, damage: Callable[[Path], None], file: str, says: str
) -> None:
    damage(older)
    assert any(name == file and says in what for name, what in found(older)), found(older)


def test_the_index_may_be_compared_piece_by_piece(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_CHUNK_DOCUMENTS", 16)
    assert verify(older).whole
    set_column("train/web/index/anchor", swap)(older)
    assert found(older) == [("train/web/index/anchor", "it does not follow from the lengths")]


def test_lengths_that_are_damaged_take_no_memory(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[int] = []
    size_fields = RecordSpec.size_fields

    def spy(spec: RecordSpec, lengths: np.ndarray) -> object:
        longest.append(int(lengths.max(initial=0)))
        return size_fields(spec, lengths)

    monkeypatch.setattr(RecordSpec, "size_fields", spy)
    set_column(LENGTH, lambda column: column | 2**16)(older)
    assert LENGTH in dict(found(older))
    assert 0 < max(longest) < 2**16


def test_what_has_no_checksum_is_said(older: Path) -> None:
    result = verify(older)
    assert result.whole
    names = [
        *("dataset.json", "train/code/index/origin_file", "train/code/index/origin_row"),
        *("train/web/index/origin_file", "train/web/index/origin_row"),
        *("train/code/quarantine.jsonl", "train/web/quarantine.jsonl"),
    ]
    assert list(result.unchecked) == names
    assert str(result).splitlines()[0] == (
        "no checksum (written by an earlier jaxdata), so damage may go unnoticed: "
        + ", ".join(names)
    )
    for unchecked, end in (
        ("abcdefgh", "unnoticed: a, b, c, d, e, f, g, h"),
        ("abcdefghij", "a, b, c, d, e, f, g, h and 2 more (--json names all)"),
    ):
        line = str(replace(result, unchecked=tuple(unchecked))).splitlines()[0]
        assert line.endswith(end)


def test_a_source_added_to_an_older_dataset_has_its_checksums(older: Path, tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "more.jsonl", records("one", "two"))
    tokenizer = f"sentencepiece:{older / 'tokenizer/tokenizer.model'}"
    convert(corpus, older, source="more", record_tokens=40, tokenizer=tokenizer)
    unchecked = verify(older).unchecked
    assert "dataset.json" not in unchecked
    assert [name for name in unchecked if "more" in name] == []
    assert "train/web/index/origin_row" in unchecked


@pytest.mark.parametrize(("source", "append"), [("more", False), ("web", True)])
def test_nothing_is_added_to_a_damaged_manifest(
    copy: Path, tmp_path: Path, source: str, *, append: bool
) -> None:
    corpus = write_lines(tmp_path / "more.jsonl", records("one", "two"))
    options = {"tokenizer": f"sentencepiece:{copy / 'tokenizer/tokenizer.model'}"}
    options |= {"record_tokens": 40, "unit_bytes": 8_000, "source": source, "append": append}
    file = copy / "dataset.json"
    fields = json.loads(file.read_bytes())
    fields["sources"]["train/web"]["checksums"]["origin_row"] = "0" * 64
    file.write_text(json.dumps(fields))
    before = tree(copy)
    says = r"dataset\.json differs from its checksum: restore it from a copy; if you edited it"
    with pytest.raises(DatasetError, match=says):
        convert(corpus, copy, **options)
    assert tree(copy) == before
    del fields["sha256"]  # as it tells those who know what they do
    fields["sources"]["train/web"]["checksums"] = {}
    file.write_text(json.dumps(fields))
    convert(corpus, copy, **options)
    assert verify(copy).whole


def test_a_manifest_that_lacks_something_is_said_in_a_line(copy: Path) -> None:
    change("dataset.json", lambda data: data.replace(b'"fingerprint"', b'"fingerprinu"', 1))(copy)
    with pytest.raises(DatasetError) as error:
        verify(copy)
    assert str(error.value) == (
        f"{copy}/dataset.json is damaged (sources.train/code.fingerprint: Field required): "
        "restore it from a copy"
    )


def test_the_checksum_of_a_manifest_is_of_what_a_reader_sees(copy: Path) -> None:
    store = open_store(copy)
    manifest = read_manifest(store)
    odd = {"é\ud800": None, "counts": {9: (2, 3), 10: 1e300}}
    entry = manifest.sources["train/web"].model_copy(update={"statistics": odd})
    update_manifest(store, lambda _: manifest.model_copy(update={"sources": {"train/web": entry}}))
    assert verify(copy).whole


def test_what_cannot_be_read_is_damage_and_no_traceback(copy: Path) -> None:
    (copy / SHARD).unlink()
    (copy / SHARD).mkdir()
    assert (SHARD, f"{copy}/{SHARD} is a folder, expected a file: restore it from a copy") in found(
        copy
    )


@pytest.mark.parametrize("name", [SHARD, "train/web/index/length/c/0", "dataset.json"])
def test_a_folder_in_the_place_of_a_file_is_said_in_words(copy: Path, name: str) -> None:
    (copy / name).unlink()
    (copy / name).mkdir()
    with pytest.raises(DatasetError, match=f"{name} is a folder, expected a file: restore it"):
        list(jaxdata.open_dataset(copy).source("train", "web"))


def test_sources_whose_inputs_may_change_unnoticed_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    run_here(tmp_path / "a.jsonl", tmp_path / "out")
    assert "inputs.json" not in str(verify(tmp_path / "out"))
    (tmp_path / "out/train/web/inputs.json").unlink()
    checked = verify(tmp_path / "out")
    assert checked.whole
    assert checked.unknown_inputs == ("train/web",)
    assert "without inputs.json, inputs that change are not noticed: train/web" in str(checked)
    (tmp_path / "out/train/web/inputs.json").write_text('{"version"')
    (damage,) = verify(tmp_path / "out").damage
    assert str(damage).startswith("train/web/inputs.json: its content differs from its checksum")


def test_a_begun_conversion_is_no_damage(copy: Path) -> None:
    for source in ("val/web", "train/web"):  # documents are being added to the other
        (copy / source / "work").mkdir(parents=True)
        (copy / source / "work/parameters.json").write_text("{}")
        (copy / source / "quarantine-9.jsonl").write_text("{}")
    result = verify(copy)
    assert result.whole
    assert result.unchecked == ()
    assert result.unfinished == ("val/web",)
    assert "unfinished: val/web; run the same conversion again" in str(result)


def test_where_there_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not a dataset: it has no dataset\.json"):
        verify(tmp_path)


def test_the_command_says_it_and_exits_with_it(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*options: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(copy), *options])
        assert (ended.value.code or 0) == status
        out, err = capsys.readouterr()
        return out + err

    assert run().splitlines()[-1].startswith(f"{copy}: whole (2 sources")
    assert json.loads(run("--json"))["whole"]
    change(SHARD, lambda data: data[:-1])(copy)
    lines = run("--threads", "1", status=1).splitlines()
    assert lines[0] == f"DAMAGED {SHARD}: it has 131,071 bytes, not 131,072"
    assert lines[1].startswith("restore these files from a copy; or convert the same input into")
    assert lines[2].startswith(f"{copy}: 1 damaged (2 sources, ")
    found = json.loads(run("--json", status=1))
    what = "it has 131,071 bytes, not 131,072"
    assert found["damage"] == [{"file": SHARD, "what": what, "remedy": ""}]
    assert found["remedy"] == lines[1]
    assert (found["path"], found["counts"]["documents"]) == (str(copy), 800)
    (copy / "dataset.json").write_text("{")
    assert re.search(r"dataset\.json is damaged \(JSON.*\): restore it from a", run(status=1))
    (copy / "dataset.json").unlink()
    assert "has neither dataset.json (a dataset) nor rows.json (exported rows)" in run(status=1)
    copy.rename(copy.with_name("elsewhere"))
    assert f"{copy} does not exist, or is empty: expected a dataset" in run(status=1)
