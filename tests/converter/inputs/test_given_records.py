"""Records that a program gives, or standard input: converted as the file of them would be."""

import datetime
import gzip
import json
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.converter.inputs.given_records import _write, files_of
from jaxdata.converter.tasks.lm import LmSettings
from tests.converter.here import decoded, manifest, records, run, run_here

RECORDS = [{"text": f"text {number} " * (number % 30), "n": number} for number in range(1_500)]


def lines_of(records: Any) -> bytes:
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records).encode()


def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_list(RECORDS)


GIVEN = {
    "generator": lambda: iter(RECORDS),
    "shuffled twice": lambda: dataset().select(range(1_499, -1, -1)).select(range(1_499, -1, -1)),
    "formatted": lambda: dataset().with_format("numpy"),
    "transformed": lambda: dataset().select_columns(["n"]).with_transform(
        lambda rows: {"text": [RECORDS[n]["text"] for n in rows["n"]], "n": rows["n"]}
    ),
    "stream": lambda: dataset().to_iterable_dataset(num_shards=3),
    "data frame": lambda: pd.DataFrame(RECORDS, index=range(1_500, 0, -1)),
    "table": lambda: pa.Table.from_pylist(RECORDS),
}  # fmt: skip


@pytest.mark.parametrize("kind", GIVEN)
def test_the_file_of_the_records_is_read(kind: str, tmp_path: Path) -> None:
    with np.errstate(all="ignore"), files_of(GIVEN[kind](), tmp_path / "out") as ((path,), _):
        assert Path(path).read_bytes() == lines_of(RECORDS)
    assert not (tmp_path / "out").exists()


def test_of_splits_the_one_that_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = datasets.DatasetDict(
        {name: datasets.Dataset.from_list([{"text": name}]) for name in ("train", "validation")}
    )
    run_here(splits, tmp_path / "out", split="validation")
    assert "of the splits 'train', 'validation', validation is converted" in caplog.text
    assert decoded(tmp_path / "out", "validation/web") == ["validation"]
    with pytest.raises(InputError, match="DatasetDict of 'train', 'validation'; split='val' is no"):
        run_here(splits, tmp_path / "out", split="val")


def test_the_same_again_others_and_more(tmp_path: Path) -> None:
    texts = ["one", "", "three"]
    (tmp_path / "same.jsonl").write_bytes(lines_of({"body": text} for text in texts))
    run_here(tmp_path / "same.jsonl", tmp_path / "file", text_key="body")
    run_here(iter(texts), tmp_path / "out", text_key="body")
    entries = (manifest(tmp_path / name)["sources"]["train/web"] for name in ("file", "out"))
    assert len({one["fingerprint"] for one in entries}) == 1, "the dataset is that of the file"
    assert run_here(iter(texts), tmp_path / "out", text_key="body").already_complete
    with pytest.raises(InputError, match=r"input 'records-.*' is new"):
        run_here([{"body": "four"}], tmp_path / "out", text_key="body")
    run_here([{"body": "four"}], tmp_path / "out", text_key="body", append=True)
    assert decoded(tmp_path / "out") == [*texts, "four"]
    run_here(iter(texts), tmp_path / "other", task=LmSettings(text_key="body"))
    assert decoded(tmp_path / "other") == texts, "the key may be that of a task"
    name, line = jaxdata.open_dataset(tmp_path / "out").source("train", "web").origin(2)[:2]
    assert (name.startswith("records-"), line) == (True, 3)
    assert not list((tmp_path / "out").glob(".*"))


def test_records_of_a_process_at_work_stay_and_those_of_one_killed_go(tmp_path: Path) -> None:
    with files_of([{"text": "one"}], tmp_path) as ((path,), _):
        mine = Path(path)
        left = shutil.copytree(mine.parent, tmp_path / ".records-left")  # nobody locks these
        with files_of([{"text": "two"}], tmp_path) as ((other,), _):
            assert mine.exists()
        assert not Path(other).parent.exists()
        assert not left.exists()
        assert mine.exists()
    assert not mine.parent.exists()


def test_values_that_json_does_not_know(tmp_path: Path) -> None:
    record = {
        "text": b"\xc3\xa9",
        "ids": np.arange(3, dtype=np.uint16),
        "score": np.float32(0.5),
        "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "price": Decimal("1.5"),
        "at": Path("a/b"),
    }
    odd = {"huge": 2**70, "half": "\ud800", "deep": [{"": [None, True, -1.5e300]}]}
    with files_of([odd, record], "memory://bucket/out") as ((path,), _):
        first, second = Path(path).read_bytes().splitlines()
    assert json.loads(first) == odd
    values = ["é", [0, 1, 2], 0.5, "2024-01-02T00:00:00+00:00", "1.5", "a/b"]
    assert [*json.loads(second).values()] == values


NO_RECORDS: list[Any] = [
    ([3], r"record 0 is a int: expected a string, or a dict with the key 'text'"),
    ([{"text": "a"}, {"image": object()}], "record 1 cannot be written as JSON .*object"),
    (iter(()), "there are no records to convert: what is given is empty or exhausted"),
    (7, "convert got a int: expected files, folders or globs; or records: an iterable of"),
    ({"text": ["a"]}, r"got a dict of 'text'; .* of records a list, as \[\{\"text\": …\}\]"),
    (["a text"], "^a text: no such file or folder.* give texts as records"),
    (pd.Series(["a text"]), "^a text: no such file .* give texts as records"),
    (iter([Path("none")]), "^none: no such file"),
]


@pytest.mark.parametrize(("given", "message"), NO_RECORDS)
def test_what_are_no_records(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run_here(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_or_shared_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"records, and standard input \(-\), are read alone"):
        run_here(RECORDS, tmp_path / "out", files_from=["list.txt"])
    with pytest.raises(InputError, match="other machines cannot read if the output is s3://b/data"):
        run(RECORDS, "s3://b/data", engine="ray")  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        run_here((1 // 0 for _ in range(1)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("x")
    with pytest.raises(InputError, match="out cannot be written: File exists"):
        run_here(RECORDS, tmp_path / "out")
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(DatasetError, match=r"cannot be written to /dev/full \(No space left"),
    ):
        _write(full, b"{}\n")


def test_standard_input_is_read_whole_once(tmp_path: Path) -> None:
    given = ["convert", "-", "--output", tmp_path / "out", "--source", "web"]
    command = [sys.executable, "-m", "jaxdata", *given, "--tokenizer", "bytes", "--workers", "1"]
    data = gzip.compress(b"".join(line + b"\n" for line in records("a", "b")))
    subprocess.run(command, input=data, check=True, capture_output=True)
    assert decoded(tmp_path / "out") == ["a", "b"]
    origin = jaxdata.open_dataset(tmp_path / "out").source("train", "web").origin(1)
    assert (origin[0].startswith("standard-input-"), origin[1]) == (True, 2)
    assert not list((tmp_path / "out").glob(".*"))
