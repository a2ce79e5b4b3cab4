"""Columns of one value a token, from lists in tables and JSON to the arrays of documents."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import jaxdata
from jaxdata.cli import cli
from jaxdata.errors import InputError
from jaxdata.format.verify import verify
from tests.converter.here import run_here
from tests.converter.test_convert import manifest, quarantine, run, tree, write_lines
from tests.converter.test_convert_kill import stop_after

EOD = 256
TYPES = ["int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]


def made(count: int = 200, seed: int = 0) -> list[list[int]]:
    chance = np.random.default_rng(seed)
    return [chance.integers(0, EOD, n).tolist() for n in chance.integers(0, 60, count)]


def write_table(path: Path, ids: list[list[int]], types: dict[str, str]) -> Path:
    """Each value is the id beside it, as far as the type holds it."""
    lists = {"input_ids": pa.array(ids, pa.list_(pa.int32()))}
    for name, dtype in types.items():
        values = [np.array(one, np.int64).astype(dtype) for one in ids]
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        flat = pa.array(np.concatenate(values), kind)
        offsets = np.cumsum([0, *map(len, ids)]).astype(np.int32)
        lists[name] = pa.ListArray.from_arrays(pa.array(offsets), flat)
    pq.write_table(pa.table(lists), path, row_group_size=20)
    return path


def docs_of(output: Path) -> Any:
    return jaxdata.open_dataset(output).source("train", "web")


def test_values_of_every_type_come_back_beside_their_ids(tmp_path: Path) -> None:
    ids, names = made(), {f"x_{dtype}": dtype for dtype in TYPES}
    file = write_table(tmp_path / "a.parquet", ids, names)
    keep = ",".join(names)
    options: dict[str, Any] = {"task": "ids", "unit_bytes": 5_000, "record_tokens": 16}
    report = run_here(file, tmp_path / "out", keep_per_token=keep, **options)
    assert report.documents == len(ids)
    docs = docs_of(tmp_path / "out")
    for number, one in enumerate(ids):
        found = docs[number]
        assert found["tokens"].tolist() == [*one, EOD]
        for name, dtype in names.items():
            expected = np.append(np.array(one, np.int64).astype(dtype), np.zeros(1, dtype))
            assert found[name].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(found[name], expected)
    assert verify(tmp_path / "out").whole
    entry = manifest(tmp_path / "out")["sources"]["train/web"]
    assert len(entry["shards"]) > 2
    assert entry["parameters"]["keep_per_token"] == [f"{n}:{d}" for n, d in names.items()]


def test_tokens_are_stored_as_they_are_without(tmp_path: Path) -> None:
    file = write_table(tmp_path / "a.parquet", made(), {"weight": "float32"})
    entries = {}
    for name, keep in {"with": ["weight"], "without": []}.items():
        run_here(file, tmp_path / name, task="ids", keep_per_token=keep)
        entries[name] = manifest(tmp_path / name)["sources"]["train/web"]
    one, other = entries["with"], entries["without"]
    assert one["shards"] == other["shards"]
    assert one["fingerprint"] != other["fingerprint"]
    assert one.keys() - other.keys() == {"side"}


def test_lines_of_json_with_a_stated_type_and_fill(tmp_path: Path) -> None:
    lines = [
        {"input_ids": [1, 2], "w": [0.5, 2], "k": [3, -4]},
        {"input_ids": [5, EOD], "w": [1, 0.25], "k": [1, 2]},
        {"input_ids": [1, 2], "w": [0.5], "k": [3, 4]},
        {"input_ids": [1, 2], "w": None, "k": [3, 4]},
        {"input_ids": [1, 2], "w": [1, "2"], "k": [3, 4]},
        {"input_ids": [1, 2], "w": [1, 2], "k": [3, 400]},
        {"input_ids": [1, 2], "w": [1, 2], "k": 3},
        {"input_ids": [1, 2], "k": [3, 4]},
        {"input_ids": [1, 2], "w": [1, 2], "k": [3, 2**70]},
    ]
    write_lines(tmp_path / "a.jsonl", [json.dumps(line).encode() for line in lines])
    keep = "w:float32:1.5, k:int8"
    run_here(tmp_path / "a.jsonl", tmp_path / "out", task="ids", keep_per_token=keep)
    docs = docs_of(tmp_path / "out")
    found = [{name: array.tolist() for name, array in docs[i].items()} for i in range(len(docs))]
    assert found == [
        {"tokens": [1, 2, EOD], "w": [0.5, 2, 1.5], "k": [3, -4, 0]},
        {"tokens": [5, EOD], "w": [1, 0.25], "k": [1, 2]},
    ]
    assert [(bad["line"], bad["reason"]) for bad in quarantine(tmp_path / "out")] == [
        (3, "'w' is not as long as 'input_ids'"),
        (4, "'w' is null"),
        (5, "'w' holds what is not a number"),
        (6, "'k' holds a number that int8 does not hold"),
        (7, "'k' is not a list"),
        (8, "no key 'w'"),
        (9, "'k' holds a number that int8 does not hold"),
    ]


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.parquet", made(3), {"weight": "float32"})
    lines = write_lines(tmp_path / "a.jsonl", [b'{"input_ids": [1], "weight": [1]}'])
    says = {
        (table, "lm", "weight"): r"--keep-per-token is for --task ids, not for task 'lm': which",
        (table, "ids", "height"): r"has no column 'height'; it has 'input_ids', 'weight': name one",
        (table, "ids", "weight,weight:int8"): r"--keep-per-token names 'weight' twice",
        (table, "ids", "weight:text"): r"weight:text: 'text' is no type; expected one as in",
        (table, "ids", "weight:bool"): r"'weight' is of bool; expected whole numbers or floats",
        (table, "ids", "weight:int8:0.5"): r"the fill '0.5' is no number of int8",
        (table, "ids", "inputs"): r"side array 'inputs': batches have another array of that name",
        (table, "ids", "a.b"): r"side array 'a.b': expected a name of up to 64 letters",
        (
            lines,
            "ids",
            "weight",
        ): r"lines of JSON, .* do not say .* --keep-per-token weight:float32",
    }
    for (file, task, keep), message in says.items():
        with pytest.raises(InputError, match=message):
            run_here(file, tmp_path / "out", task=task, keep_per_token=keep)
    pq.write_table(pa.table({"input_ids": [[1]], "weight": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(
        InputError, match=r"column 'weight' of .*b.parquet is string; expected list"
    ):
        run_here(
            [table, tmp_path / "b.parquet"], tmp_path / "out", task="ids", keep_per_token="weight"
        )


def test_inspect_shows_them(tmp_path: Path) -> None:
    line = {"input_ids": [1, 2], "w": [0.5, 2]}
    write_lines(tmp_path / "a.jsonl", [json.dumps(line).encode()])
    run_here(tmp_path / "a.jsonl", tmp_path / "out", task="ids", keep_per_token="w:float32")
    told = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out")], catch_exceptions=False)
    assert ", side arrays w (float32)\n" in told.output
    asked = ["inspect", str(tmp_path / "out"), "--document", "train/web:0", "--json"]
    told = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert json.loads(told.output)["side"] == {"w": [0.5, 2, 0]}


def test_appended_documents_have_theirs_and_a_generation_its_own(tmp_path: Path) -> None:
    ids, more = made(50), made(40, seed=1)
    types = {"weight": "float32"}
    options: dict[str, Any] = {"task": "ids", "keep_per_token": "weight", "append": True}
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in/a.parquet", ids, types)
    run_here(tmp_path / "in", tmp_path / "out", **options)
    write_table(tmp_path / "in/b.parquet", more, types)
    run_here(tmp_path / "in", tmp_path / "out", **options)
    assert verify(tmp_path / "out").whole
    whole = docs_of(tmp_path / "out")
    first = jaxdata.open_dataset(tmp_path / "out").source("train", "web", generation=0)
    assert (len(first), len(whole)) == (50, 90)
    for number, one in enumerate([*ids, *more]):
        assert whole[number]["weight"].tolist() == [*one, 0]
        assert number >= 50 or first[number]["weight"].tolist() == [*one, 0]
    with pytest.raises(InputError, match=r"keep_per_token was \['weight:float32'\], is \[\]"):
        run_here(tmp_path / "in", tmp_path / "out", task="ids", append=True)


@pytest.mark.exhaustive
def test_a_killed_conversion_ends_with_the_same_bytes(tmp_path: Path) -> None:
    file = write_table(tmp_path / "a.parquet", made(3_000), {"weight": "float32", "k": "int8"})
    options: dict[str, Any] = {"unit_bytes": 10_000, "keep_per_token": "weight,k", "task": "ids"}
    run(file, tmp_path / "one", workers=1, **options)
    output = tmp_path / "two"
    command = [
        *(sys.executable, "-m", "jaxdata", "convert", str(file), "--output", str(output)),
        *("--source", "web", "--tokenizer", "bytes", "--workers", "2", "--unit-bytes", "10000"),
        *("--task", "ids", "--keep-per-token", "weight,k"),
    ]
    code, _ = stop_after(command, output, 5, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (output / "dataset.json").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert tree(output) == tree(tmp_path / "one")
    assert len(list(output.glob("train/web/*.weight.array_record"))) > 10
