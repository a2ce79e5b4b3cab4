"""Rows written down: what is read back is what the Loader delivers, however often it was killed."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

import jaxdata
from jaxdata.cli import main
from jaxdata.cli import materialize as command
from jaxdata.errors import DatasetError, InputError, StateMismatch, WorkerDied
from jaxdata.materializer import api as driver
from jaxdata.materializer.formats import RECORD_FORMATS
from jaxdata.materializer.formats.tf_example import decode_example, encode_example
from jaxdata.testing import (
    assert_resumes_everywhere,
    assert_same_batches,
    distinct_documents,
    write_dataset,
)

Row = dict[str, np.ndarray[Any, Any]]
PAD = 1_000_000  # a tokenizer's own idea of padding


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sources, one of them masked, mixed and shuffled, with documents longer than a row."""
    folder = tmp_path_factory.mktemp("materialize")
    rng = np.random.default_rng(0)
    documents = distinct_documents([*rng.integers(1, 60, 400), 900])
    masks = [rng.integers(0, 2, len(document)) for document in documents[300:]]
    write_dataset(
        folder / "d",
        {"train/web": documents[:300], "train/code": documents[300:], "val/web": documents[:20]},
        {"train/code": masks},
    )
    path = folder / "run.yaml"
    path.write_text(
        f"dataset: {folder / 'd'}\n"
        "pack: {seq_len: 64, overlap: 8}\n"
        "curriculum: {mix: {web: 0.75, code: 0.25}}\n"
        "loader: {batch_size: 1}\n"
    )
    return str(path)


def loaded(config: str, split: str | None = None, **overrides: Any) -> list[Row]:
    """What the Loader delivers, row by row, without constants, and masks that are not stored."""
    loader = jaxdata.load(config, split, eval_batch_size=1, **overrides)
    return [
        {name: array[0] for name, array in batch.items() if array.ndim and name != "attention_mask"}
        for batch in loader
    ]


def records(folder: Path) -> list[bytes]:
    """Every record of every file, in order."""
    found = []
    for path in sorted(folder.glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        found += reader.read(0, reader.num_records())
    return found


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["materialize", *arguments])
    return int(ended.value.code or 0)


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def assert_same_rows(one: list[Row], other: list[Row]) -> None:
    assert len(one) == len(other) > 0
    assert_same_batches(one, other)


def test_three_lines_of_numpy_read_what_the_loader_delivers(config: str, tmp_path: Path) -> None:
    assert run("--config", config, "--output", str(tmp_path / "rows"), "--shard-rows", "30") == 0
    fields = json.loads((tmp_path / "rows/rows.json").read_text())["fields"]
    dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields])
    rows = [np.frombuffer(record, dtype)[0] for record in records(tmp_path / "rows")]
    expected = loaded(config)
    assert_same_rows([{name: row[name] for name in dtype.names} for row in rows], expected)
    # Nothing else lies in a record, and the order of the arrays is that of the batch.
    assert all(
        record == b"".join(array.tobytes() for array in row.values())
        for record, row in zip(records(tmp_path / "rows"), expected, strict=True)
    )


def test_examples_are_read_by_whoever_knows_the_wire_format(config: str, tmp_path: Path) -> None:
    options = ["--output", str(tmp_path), "--record-format", "tf_example"]
    assert run("--config", config, *options) == 0
    expected = loaded(config)
    for record, row in zip(records(tmp_path), expected, strict=True):
        found = parse_example(record)
        assert found == {name: array.astype(int).tolist() for name, array in row.items()}


def parse_example(data: bytes) -> dict[str, list[int]]:
    """A `tf.train.Example` of int64 lists by hand: only varints and lengths, no protobuf."""
    found = {}
    (features,) = [value for _, value in fields_of(data)]
    for _, entry in fields_of(features):
        (_, key), (_, feature) = fields_of(entry)
        ((kind, int64_list),) = fields_of(feature)
        assert kind == 3
        values: list[int] = []
        for _, packed in fields_of(int64_list):
            values += varints(packed)
        found[key.decode()] = values
    return found


def fields_of(data: bytes) -> list[tuple[int, bytes]]:
    """(number, bytes) of every field of a message in which all have a length."""
    found, at = [], 0
    while at < len(data):
        tag, at = varint(data, at)
        size, at = varint(data, at)
        assert tag & 7 == 2
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def varints(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        values.append(value - 2**64 if value >= 2**63 else value)
    return values


def test_the_bytes_of_an_example() -> None:
    numbers = b"\x05\xac\x02" + b"\xff" * 9 + b"\x01"  # 5, 300, -1 as varints
    entry = b"\x0a\x06inputs\x12\x11\x1a\x0f\x0a\x0d" + numbers
    expected = b"\x0a\x1d\x0a\x1b" + entry
    assert encode_example({"inputs": np.array([5, 300, -1])}) == expected
    floats = encode_example({"mask": np.array([0.5, 1], np.float32)})
    assert decode_example(floats)["mask"].tolist() == [0.5, 1]


def test_maxtext_makes_the_same_batches_of_it(config: str, tmp_path: Path) -> None:
    """Its steps for tokenised data, as version 0.2.5 does them without packing."""
    options = ["--record-format", "tf_example", "--layout", "maxtext", "--shard-rows", "40"]
    options += ["--pack.strategy", "concat", "--pack.overlap", "0", "--workers", "1"]
    assert run("--config", config, "--output", str(tmp_path), *options) == 0
    files = sorted(map(str, tmp_path.glob("*.array_record")))
    assert len(files) > 1

    def prepared(record: bytes) -> Row:
        column = np.array(parse_example(record)["text"], np.int32)  # what it reads by default
        padded = np.pad(column, (0, 64 - len(column)), constant_values=PAD)
        targets = np.append(padded[1:], PAD)
        return {"inputs": padded, "targets": targets, "loss": targets != PAD}

    found = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).map(prepared)
    expected = loaded(config, **{"pack.strategy": "concat", "pack.overlap": 0})
    assert len(found) == len(expected)
    for row, ours in zip(found, expected, strict=True):
        filled = ours["segment_ids"] > 0
        assert np.array_equal(row["inputs"][filled], ours["inputs"][filled])
        inside = ours["loss_mask"].copy()
        inside[-1] = False  # it has no target for the last slot
        assert np.array_equal(row["targets"][inside], ours["targets"][inside])
        assert row["loss"].sum() == max(0, filled.sum() - 1)


@pytest.mark.parametrize("layout", ["maxtext", "hf", "megatron"])
def test_every_layout_is_written_as_the_loader_lays_it_out(
    config: str, tmp_path: Path, layout: str
) -> None:
    for record_format in ("plain", "tf_example"):
        output = tmp_path / record_format
        options = ["--output", str(output), "--layout", layout, "--record-format", record_format]
        assert run("--config", config, "--rows", ":9", *options) == 0
        expected = loaded(config, loader={"layout": layout})[:9]
        assert_same_rows(list(jaxdata.open_rows(output)), expected)


@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_a_loader_reads_it(config: str, tmp_path: Path, record_format: str) -> None:
    done = jaxdata.materialize(
        jaxdata.load(config).rows, tmp_path, record_format=record_format, shard_rows=50, workers=1
    )
    rows = jaxdata.open_rows(tmp_path)
    assert len(rows) == done.rows
    assert_same_batches(
        jaxdata.load(config, loader={"batch_size": 8}), jaxdata.Loader(rows, batch_size=8)
    )
    assert done.trained_tokens == sum(int(row["loss_mask"].sum()) for row in loaded(config))
    assert_resumes_everywhere(lambda: jaxdata.Loader(rows, batch_size=40), tail=1)
    with_workers = jaxdata.Loader(rows, batch_size=8, num_workers=2)
    assert_same_batches(jaxdata.Loader(rows, batch_size=8), with_workers)


def test_a_state_knows_which_rows_it_is_of(config: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        jaxdata.materialize(jaxdata.load(config, seed=seed).rows, tmp_path / str(seed))
    loaders = [jaxdata.Loader(jaxdata.open_rows(tmp_path / str(k)), batch_size=8) for k in (0, 1)]
    with pytest.raises(StateMismatch, match="data was"):
        loaders[1].set_state(loaders[0].get_state())


def test_dataset_order_ranges_and_other_splits(config: str, tmp_path: Path) -> None:
    assert run("--config", config, "--output", str(tmp_path / "val"), "--split", "val") == 0
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "val")), loaded(config, "val"))
    assert run("--config", config, "--output", str(tmp_path / "flat"), "--no-shuffle") == 0
    flat = list(jaxdata.open_rows(tmp_path / "flat"))
    first = [row["inputs"][0] for row in flat]
    documents = jaxdata.open_dataset(Path(config).parent / "d").source("train", "code")
    assert first[0] == next(d["tokens"][0] for d in documents if len(d["tokens"]) > 1)
    assert run("--config", config, "--output", str(tmp_path / "part"), "--rows", "10:25") == 0
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "part")), loaded(config)[10:25])
    skipped = ["--rows", "10:25", "--loader.skip_rows", "[[0, 3], [12, 20]]"]
    assert run("--config", config, "--output", str(tmp_path / "skip"), *skipped) == 0
    kept = [*loaded(config)[10:12], *loaded(config)[20:25]]
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "skip")), kept)


def test_rows_of_a_function_are_written_as_it_makes_them(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows.map(lambda row: {"twice": row["inputs"].astype(np.int64) * 2})
    done = jaxdata.materialize(rows, tmp_path, workers=1)
    assert done.trained_tokens is None
    assert_same_rows(
        list(jaxdata.open_rows(tmp_path)),
        [{"twice": row["inputs"].astype(np.int64) * 2} for row in loaded(config)],
    )


def test_what_cannot_be_is_refused(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = jaxdata.load(config).rows
    output = str(tmp_path / "out")
    for options, says in [
        ({"layout": "square"}, "layout='square': expected one of 'jaxdata', 'maxtext'"),
        ({"record_format": "csv"}, "record_format='csv': expected plain | tf_example"),
        ({"workers": 0}, "workers=0: expected 1 or more"),
        ({"first_row": 9, "stop_row": 9}, "rows 9:9: expected a range"),
        ({"stop_row": len(rows) + 1}, f"stop <= {len(rows)}"),
        ({"stop_row": 2, "skip_rows": [(0, 2)]}, "nothing is left to write"),
    ]:
        with pytest.raises(InputError) as refused:
            jaxdata.materialize(rows, output, **options)  # type: ignore[arg-type]
        assert says in str(refused.value)
    with pytest.raises(InputError, match="is a dataset of documents"):
        jaxdata.materialize(rows, Path(config).parent / "d")
    with pytest.raises(DatasetError, match="holds no finished rows"):
        jaxdata.open_rows(output)
    assert run("--config", config, "--output", output, "--rows", "5") == 2
    assert "expected rows like 0:1000" in capsys.readouterr().err


def test_the_same_again_does_nothing_and_another_is_refused(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    jaxdata.materialize(rows, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    jaxdata.materialize(rows, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match=r"record_format was 'plain', is 'tf_example'"):
        jaxdata.materialize(rows, tmp_path, record_format="tf_example")
    with pytest.raises(InputError, match=r"run\[seed\] was 0, is 7"):
        jaxdata.materialize(jaxdata.load(config, seed=7).rows, tmp_path)


def test_of_two_at_once_one_is_told_who_the_other_is(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    told = []

    def again(_done: int, _total: int) -> None:
        for options in ({}, {"record_format": "tf_example"}):
            with pytest.raises(DatasetError) as error:
                jaxdata.materialize(rows, tmp_path / "out", shard_rows=20, workers=1, **options)
            told.append(str(error.value))

    jaxdata.materialize(rows, tmp_path / "out", shard_rows=20, workers=1, progress=again)
    assert len(told) > 2
    says = f"{tmp_path}/out is being written by another process: process {os.getpid()} on "
    assert all(one.startswith(says) for one in told)
    jaxdata.materialize(rows, tmp_path / "alone", shard_rows=20, workers=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


def verified(folder: Path, capsys: pytest.CaptureFixture[str], status: int) -> str:
    """What `jaxdata verify` prints; it must exit with `status`."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(folder)])
    assert (ended.value.code or 0) == status
    return capsys.readouterr().out


def test_a_damaged_set_says_so(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = jaxdata.materialize(jaxdata.load(config).rows, tmp_path, shard_rows=50, workers=1)
    whole = f"{tmp_path}: whole ({len(done.shards)} files, {done.rows} rows, "
    assert verified(tmp_path, capsys, 0).startswith(whole)
    (tmp_path / done.shards[1].name).write_bytes(b"nothing")
    (tmp_path / done.shards[0].name).rename(tmp_path / "elsewhere")
    assert re.match(
        r"DAMAGED 00000-of-\d+.array_record: .* is missing: .*\n"
        r"DAMAGED 00001-of-\d+.array_record: it has 7 bytes, not [\d,]+\n"
        r"restore these files from a copy, or materialize the rows again\n",
        verified(tmp_path, capsys, 1),
    )
    (tmp_path / "elsewhere").rename(tmp_path / done.shards[0].name)
    rows = jaxdata.open_rows(tmp_path)
    assert rows[0]["inputs"].shape == (64,)
    with pytest.raises(DatasetError, match="cannot be read"):
        rows[50]


def test_a_damaged_description_says_so(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jaxdata.materialize(jaxdata.load(config).rows, tmp_path, workers=1)
    file = tmp_path / "rows.json"
    text = file.read_text()
    file.write_text(text.replace('"stop_row": 202', '"stop_row": 203'))
    said = "DAMAGED rows.json: its content differs from its checksum, so what it says of other"
    assert verified(tmp_path, capsys, 1).startswith(said)
    file.write_text(re.sub(r'\n "sha256": "\w+",', "", text))
    said = "no checksum (written by an earlier jaxdata), so damage may go unnoticed: rows.json\n"
    assert verified(tmp_path, capsys, 0).startswith(said)
    file.write_text("{")
    with pytest.raises(DatasetError, match=r"rows\.json is damaged"):
        jaxdata.open_rows(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_killed_at_any_moment_and_finished_by_the_same_command(
    config: str, tmp_path: Path, record_format: str
) -> None:
    command = [
        *(sys.executable, "-m", "jaxdata", "materialize", "--config", config),
        *("--shard-rows", "4", "--record-format", record_format, "--workers", "2"),
    ]
    jaxdata.materialize(
        jaxdata.load(config).rows,
        tmp_path / "expected",
        shard_rows=4,
        record_format=record_format,
        workers=1,
    )
    expected, output = tree(tmp_path / "expected"), tmp_path / "out"
    chance = np.random.default_rng(1)
    for _ in range(int(os.environ.get("JAXDATA_KILLS", "2"))):
        _kill_after(command, output, int(chance.integers(0, len(expected) - 1)))
        if (output / "rows.json").exists():
            assert {k: v for k, v in tree(output).items() if not k.startswith("work")} == expected
            shutil.rmtree(output)
    subprocess.run([*command, "--output", str(output)], check=True, capture_output=True)
    assert tree(output) == expected


def _kill_after(command: list[str], output: Path, receipts: int) -> None:
    process = subprocess.Popen([*command, "--output", str(output)], stdout=subprocess.DEVNULL)
    while len(list(output.glob("work/*.receipt"))) < receipts and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not (output / "rows.json").exists():
        with pytest.raises(DatasetError, match="the same command finishes it"):
            jaxdata.open_rows(output)


def killing_once(batch: Row) -> Row:
    """A layout that kills the first worker process that comes to it."""
    parent, mark = os.environ["JAXDATA_TEST_KILLED"].split(":")
    if os.getpid() != int(parent) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def test_a_killed_worker_is_named_and_its_work_done_again(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = jaxdata.load(config).rows
    monkeypatch.setenv("JAXDATA_TEST_KILLED", f"{os.getpid()}:{tmp_path / 'mark'}")
    settings: Any = {"shard_rows": 4, "layout": killing_once}
    with pytest.raises(WorkerDied, match=r"SIGKILL.*the same command resumes"):
        jaxdata.materialize(rows, tmp_path / "out", workers=2, **settings)
    jaxdata.materialize(rows, tmp_path / "out", workers=2, **settings)
    jaxdata.materialize(rows, tmp_path / "expected", workers=1, **settings)
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_what_was_begun_otherwise_is_refused(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = jaxdata.load(config).rows
    monkeypatch.setattr(driver, "_publish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jaxdata.materialize(rows, tmp_path, shard_rows=30, workers=1)
    with pytest.raises(InputError, match=r"unfinished rows.*shard_rows was 30, is 20"):
        jaxdata.materialize(rows, tmp_path, shard_rows=20)


_FULL = """
mount -t tmpfs -o size=200k none {disk} || exit 99
{command} 2> {disk}/../errors
echo $? > {disk}/../status
find {disk} -type f > {disk}/../left
mount -o remount,size=64m none {disk}
{command} && cp -r {disk}/out {disk}/../finished
"""


@pytest.mark.slow
def test_a_full_disk_is_said_and_what_is_done_is_kept(config: str, tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("a disk to fill needs util-linux's unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-m", "jaxdata", "materialize", "--config", config]
    command += ["--output", str(disk / "out"), "--shard-rows", "40", "--workers", "1"]
    script = _FULL.format(disk=disk, command=" ".join(command))
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if not (tmp_path / "status").exists():
        pytest.skip(f"this system lets us mount nothing, not even in a namespace: {done.stderr}")
    says = (tmp_path / "errors").read_text()
    assert (tmp_path / "status").read_text() == "1\n", says
    assert says.startswith(f"error: {disk}/out cannot be written: No space left on device")
    left = (tmp_path / "left").read_text()
    assert ".receipt" in left
    assert ".tmp-" not in left
    assert "rows.json" not in left
    assert done.returncode == 0, done.stderr
    jaxdata.materialize(jaxdata.load(config).rows, tmp_path / "whole", shard_rows=40)
    assert tree(tmp_path / "finished") == tree(tmp_path / "whole")


def test_a_record_format_is_one_entry_in_the_registry(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORD_FORMATS, "toy", RECORD_FORMATS["plain"])
    importlib.reload(command)  # its choices are made when it is imported
    options = ["--output", str(tmp_path), "--record-format", "toy", "--workers", "1"]
    assert run("--config", config, "--rows", ":9", *options) == 0
    assert_same_rows(list(jaxdata.open_rows(tmp_path)), loaded(config)[:9])
    monkeypatch.undo()
    importlib.reload(command)
