"""Rows written down once, whatever is killed: what is read back is what the Loader delivers."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch, WorkerDied
from jaxdata.foreign.materialize import verify_rows
from jaxdata.testing import assert_resumes_everywhere, assert_same_batches, distinct_documents
from tests import builders, commands
from tests.converter.here import tree
from tests.storage.buckets.conftest import server
from tests.storage.servers import BucketServer
from tests.test_golden import FORMAT_2, PHASES

__all__ = ["server"]

Patch = pytest.MonkeyPatch
Row = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sources, one of them masked, mixed and shuffled, with documents longer than a row."""
    folder = tmp_path_factory.mktemp("materialize")
    rng = np.random.default_rng(0)
    documents = distinct_documents([*rng.integers(1, 60, 400), 900])
    masks = [rng.integers(0, 2, len(document)) for document in documents[300:]]
    sources = {"web": documents[:300], "code": documents[300:], "val/web": documents[:20]}
    sections: dict[str, Any] = {
        "dataset": str(builders.dataset(folder / "d", sources, masks={"code": masks})),
        "pack": {"seq_len": 64, "overlap": 8},
        "curriculum": {"mix": {"web": 0.75, "code": 0.25}},
        "loader": {"batch_size": 1},
    }
    return str(builders.run(folder, **sections))


def loaded(config: str, split: str | None = None, **overrides: Any) -> list[Row]:
    """What the Loader delivers, row by row, without constants, and masks that are not stored."""
    return [
        {name: array[0] for name, array in batch.items() if array.ndim and name != "attention_mask"}
        for batch in jaxdata.load(config, split, **overrides)
    ]


def records(folder: Path) -> list[bytes]:
    """Every record of every file, in order."""
    found = []
    for path in sorted(folder.glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        found += reader.read(0, reader.num_records())
    return found


def assert_same_rows(one: list[Row], other: list[Row]) -> None:
    assert len(one) == len(other) > 0
    assert_same_batches(one, other)


def test_three_lines_of_numpy_read_what_the_loader_delivers(config: str, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "rows", "--shard-rows", "30")
    commands.run("export", "--config", config, *output)
    fields = json.loads((tmp_path / "rows/rows.json").read_text())["fields"]
    dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields])
    rows = [np.frombuffer(record, dtype)[0] for record in records(tmp_path / "rows")]
    expected = loaded(config)
    assert_same_rows([{name: row[name] for name in dtype.names} for row in rows], expected)
    # Nothing else lies in a record, and the order of the arrays is that of the batch.
    written = [b"".join(array.tobytes() for array in row.values()) for row in expected]
    assert records(tmp_path / "rows") == written


@pytest.mark.parametrize("layout", ["maxtext", "hf", "megatron"])
def test_every_layout_is_that_of_the_loader(config: str, tmp_path: Path, layout: str) -> None:
    for record_format in ("rows", "tf_example"):
        output = tmp_path / record_format
        options = ["--output", str(output), "--loader.layout", layout, "--format", record_format]
        commands.run("export", "--config", config, "--rows", ":9", *options)
        expected = loaded(config, loader={"layout": layout})[:9]
        assert_same_rows(list(jaxdata.open_rows(output)), expected)


@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_extras_are_written_where_they_are_asked_for(tmp_path: Path, record_format: str) -> None:
    tokens = distinct_documents([5, 9, 12, 3] * 9)
    side = {"weight": [document.astype(np.float32) / 4 for document in tokens]}
    rows = jaxdata.pack(jaxdata.ArrayDocuments(tokens, side=side), seq_len=8)
    given: Any = {"extras": ("document", "weight")}
    settings: Any = {"shard_rows": 10, "workers": 1, "record_format": record_format}
    jaxdata.materialize(rows, tmp_path, **settings, **given)
    whole: dict[str, Any] = {"batch_size": 4, "drop_remainder": True}
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path), **whole)
    assert assert_same_batches(read, jaxdata.Loader(rows, **given, **whole)) > 5


def test_a_state_knows_which_rows_it_is_of(config: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("jaxdata.foreign.materialize._BATCH_BYTES", 9_000)  # eight rows
    loaders = []
    for seed in (0, 1):
        rows = jaxdata.load(config, seed=seed).rows
        done = jaxdata.materialize(rows, tmp_path / str(seed), workers=1)
        assert done.trained_tokens == sum(int(row["loss_mask"].sum()) for row in rows)
        loaders.append(jaxdata.Loader(jaxdata.open_rows(tmp_path / str(seed)), batch_size=8))
    with pytest.raises(StateMismatch, match="data was"):
        loaders[1].set_state(loaders[0].get_state())


def test_dataset_order_ranges_and_other_splits(config: str, tmp_path: Path) -> None:
    def written(*options: str) -> list[Row]:
        output = tmp_path / str(len(options)) / options[0]
        commands.run("export", "--config", config, "--output", str(output), *options)
        return list(jaxdata.open_rows(output))

    all_ = loaded(config)
    assert_same_rows(written("--split", "val"), loaded(config, "val"))
    assert_same_rows(written("--rows", "10:25"), all_[10:25])
    skipped = written("--rows", "10:25", "--loader.skip_rows", "[[0, 3], [12, 20]]")
    assert_same_rows(skipped, [*all_[10:12], *all_[20:25]])
    documents = jaxdata.open_dataset(Path(config).parent / "d").source("train", "code")
    first = next(d["tokens"][0] for d in documents if len(d["tokens"]) > 1)
    assert written("--no-shuffle")[0]["inputs"][0] == first


def test_rows_of_a_function_are_written_as_it_makes_them(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows.map(lambda row: {"twice": row["inputs"].astype(np.int64) * 2})
    assert jaxdata.materialize(rows, tmp_path, workers=1).trained_tokens is None
    assert_same_rows(list(jaxdata.open_rows(tmp_path)), list(rows))


def test_what_cannot_be_is_refused(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    output = str(tmp_path / "out")
    doubled = rows.map(lambda row: {"twice": row["inputs"] * 2.0})
    for given, where, options, says in [
        (rows, output, {"layout": "square"}, "layout='square': expected one of 'jaxdata', 'max"),
        (rows, output, {"record_format": "csv"}, "record_format='csv': expected plain | tf_exa"),
        (rows, output, {"workers": 0}, "workers=0: expected at least 1"),
        (rows, output, {"first_row": 9, "stop_row": 9}, "rows 9:9: expected a range"),
        (rows, output, {"stop_row": len(rows) + 1}, f"stop <= {len(rows)}"),
        (rows, output, {"stop_row": 2, "skip_rows": [(0, 2)]}, "nothing is left to write"),
        (doubled, output, {"record_format": "tf_example"}, "'twice' is float64: use record_f"),
        (rows, Path(config).parent / "d", {}, "is a dataset of documents"),
    ]:
        with pytest.raises(InputError) as refused:
            jaxdata.materialize(given, where, **options)
        assert says in str(refused.value)
    with pytest.raises(DatasetError, match="holds no finished rows"):
        jaxdata.open_rows(output)
    wrong = ["export", "--config", config, "--output", output, "--rows", "5"]
    assert "expected rows like 0:1000" in commands.run(*wrong, status=2).stderr


def test_the_same_again_does_nothing_and_another_is_refused(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    jaxdata.materialize(rows, tmp_path, workers=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    jaxdata.materialize(rows, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match=r"record_format was 'plain', is 'tf_example'"):
        jaxdata.materialize(rows, tmp_path, record_format="tf_example")
    with pytest.raises(InputError, match=r"run\[seed\] was 0, is 7"):
        jaxdata.materialize(jaxdata.load(config, seed=7).rows, tmp_path)


def killing_once(batch: Row) -> Row:
    """A layout that kills the first worker process that comes to it."""
    parent, mark = os.environ["JAXDATA_TEST_KILLED"].split(":")
    if os.getpid() != int(parent) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def test_a_killed_worker_is_named_and_its_work_done_again(
    config: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    rows = jaxdata.load(config).rows
    monkeypatch.setenv("JAXDATA_TEST_KILLED", f"{os.getpid()}:{tmp_path / 'mark'}")
    settings: Any = {"shard_rows": 4, "layout": killing_once}
    with pytest.raises(WorkerDied, match=r"SIGKILL.*the same command resumes"):
        jaxdata.materialize(rows, tmp_path / "out", workers=2, **settings)
    jaxdata.materialize(rows, tmp_path / "out", workers=1, **settings)
    jaxdata.materialize(rows, tmp_path / "expected", workers=1, **settings)
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def mixed() -> Any:
    """Rows in lanes."""
    rows, pools = {}, {"chunk_bytes": 200, "block_bytes": 800}
    for name, count, first, lanes in (("web", 300, 1, 16), ("code", 100, 10**5, 1)):
        made = builders.documents(count, longest=90, first=first)
        docs = jaxdata.ArrayDocuments(made, name=f"train/{name}")
        rows[name] = jaxdata.pack(docs, seq_len=32, **pools, lanes=lanes)
    return jaxdata.mix(rows)


def test_batches_are_those_of_the_rows(tmp_path: Path) -> None:
    jaxdata.materialize(mixed(), tmp_path / "rows", shard_rows=50, workers=1)
    rows, read = mixed(), jaxdata.open_rows(tmp_path / "rows")

    def loader(given: Any) -> jaxdata.Loader:
        return jaxdata.Loader(given, batch_size=24, shard=(1, 3), prefetch=0)

    expected, ours = list(loader(rows)), loader(rows).batch_rows(1).tolist()
    assert ours != sorted(ours)
    assert loader(read).batch_rows(1).tolist() == ours
    assert_same_batches(list(loader(read)), expected)
    assert_same_batches(list(loader(read.map(dict))), expected)
    assert_resumes_everywhere(lambda: loader(read), tail=1)
    for number in (0, 49, 50, len(rows) + 1):
        assert (read[number]["inputs"] == rows[number % len(rows)]["inputs"]).all()
    some: Any = {"first_row": 24, "stop_row": 80, "skip_rows": [(48, 56)]}
    jaxdata.materialize(rows, tmp_path / "some", workers=1, **some)
    skipping = jaxdata.Loader(rows, batch_size=24, skip_rows=[(0, 24), (48, 56)])
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path / "some"), batch_size=24)
    assert_same_batches(list(islice(read, 2)), list(islice(skipping, 2)))


def test_rows_are_written_to_a_bucket_and_read_from_it(server: BucketServer) -> None:
    rows, url = mixed(), server.url("rows/run")
    made = jaxdata.materialize(rows, url, shard_rows=20, workers=2)
    assert_same_rows(list(jaxdata.open_rows(url)), list(rows))
    assert jaxdata.materialize(rows, url, shard_rows=20) == made
    shard = f"rows/run/{made.shards[0].name}"
    server.write(shard, server.read(shard)[:-1] + b"\1")
    with pytest.raises(DatasetError, match=r"run/.*cannot be read: its content differs"):
        jaxdata.open_rows(url)[0]


def test_rows_that_were_written_once_open(tmp_path: Path) -> None:
    """The same files are written today; `tests/data/rows-2.json` described them then."""
    shutil.copytree(FORMAT_2, tmp_path / "data")
    opened = jaxdata.open_dataset(tmp_path / "data")
    sources = {name: opened.source("train", name) for name in ("words", "masked")}
    packed = {name: jaxdata.pack(docs, seq_len=64) for name, docs in sources.items()}
    rows = jaxdata.mix(packed, phases=PHASES, epochs={"masked": 2})
    jaxdata.materialize(rows, tmp_path / "rows", shard_rows=40, workers=1)
    described = FORMAT_2.parent / "rows-2.json"
    assert (tmp_path / "rows" / "rows.json").read_bytes() == described.read_bytes()
    assert verify_rows(tmp_path / "rows").whole
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path / "rows"), batch_size=8)
    assert_same_batches(read, jaxdata.Loader(rows, batch_size=8))


PAD = 1_000_000  # a tokenizer's own idea of padding


def parse_example(data: bytes) -> dict[str, list[int]]:
    """A `tf.train.Example` of int64 lists, by hand: only varints and lengths, no protobuf."""

    def varints(data: bytes) -> Iterator[int]:
        value = shift = 0
        for byte in data:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                yield value - 2**64 if value >= 2**63 else value
                value = shift = 0

    def fields(data: bytes) -> Iterator[bytes]:
        """Of a message in which all fields have a length."""
        while data:
            assert data[0] & 7 == 2
            size = next(varints(data[1:]))
            begins = 1 + -(-max(1, size.bit_length()) // 7)
            yield data[begins : begins + size]
            data = data[begins + size :]

    (features,) = fields(data)
    found = {}
    for key, feature in map(fields, fields(features)):
        assert feature[:1] == b"\x1a", "int64_list"
        lists = fields(next(fields(feature)))
        found[key.decode()] = [one for each in lists for one in varints(each)]
    return found


def test_maxtext_makes_the_same_batches_of_it(config: str, tmp_path: Path) -> None:
    """Its steps for tokenised data, as version 0.2.5 does them without packing."""
    concat: Any = {"pack.strategy": "concat", "pack.overlap": 0}
    options = ["--format", "tf_example", "--loader.layout", "maxtext", "--shard-rows", "40"]
    options += ["--pack.strategy", "concat", "--pack.overlap", "0"]
    commands.run("export", "--config", config, "--output", str(tmp_path), *options)
    expected, written = loaded(config, **concat), records(tmp_path)
    laid_out = loaded(config, **concat, loader={"layout": "maxtext"})
    for record, row, ours in zip(written, laid_out, expected, strict=True):
        found = parse_example(record)
        column = found.pop("text")  # what it reads by default
        assert found == {name: array.astype(int).tolist() for name, array in row.items()}
        padded = np.pad(column, (0, 64 - len(column)), constant_values=PAD)
        targets = np.append(padded[1:], PAD)
        filled, inside = ours["segment_ids"] > 0, ours["loss_mask"].copy()
        inside[-1] = False  # it has no target for the last slot
        assert np.array_equal(padded[filled], ours["inputs"][filled])
        assert np.array_equal(targets[inside], ours["targets"][inside])
        assert (targets != PAD).sum() == max(0, filled.sum() - 1)
