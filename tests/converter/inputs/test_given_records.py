"""Records that a program gives, or standard input: converted as the file of them would be."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.given_records import files_or_records, spooled, spooled_stream
from tests import commands
from tests.converter.here import run_here
from tests.converter.test_convert import decoded, manifest, run, tree

UNIT_BYTES = 4_000
RECORDS = [{"text": f"text {number} " * (number % 30), "n": number} for number in range(500)]


def as_file(folder: Path, records: Any) -> Path:
    path = folder / "same.jsonl"
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records))
    return path


def content(output: Path) -> dict[str, str]:
    """The bytes of a dataset that hold no input's name."""
    named = ("dataset.json", "inputs.json")
    return {name: digest for name, digest in tree(output).items() if not name.endswith(named)}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the file of the records becomes."""
    folder = tmp_path_factory.mktemp("file")
    run_here(as_file(folder, RECORDS), folder / "out", unit_bytes=UNIT_BYTES)
    return folder / "out"


def generator() -> Iterator[dict[str, Any]]:
    yield from RECORDS


def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_list(RECORDS)


GIVEN = {
    "list": lambda: RECORDS,
    "generator": generator,
    "dataset": dataset,
    "shuffled twice": lambda: dataset().select(range(499, -1, -1)).select(range(499, -1, -1)),
    "formatted": lambda: dataset().with_format("numpy"),
    "transformed": lambda: dataset().select_columns(["n"]).with_transform(
        lambda rows: {"text": [RECORDS[n]["text"] for n in rows["n"]], "n": rows["n"]}
    ),
    "stream": lambda: dataset().to_iterable_dataset(num_shards=3),
    "data frame": lambda: pd.DataFrame(RECORDS, index=range(500, 0, -1)),
    "table": lambda: pa.Table.from_pylist(RECORDS),
}  # fmt: skip


@pytest.mark.parametrize("kind", GIVEN)
def test_the_file_of_the_records_is_read(kind: str, tmp_path: Path) -> None:
    _, rows = files_or_records(GIVEN[kind](), "convert")
    with np.errstate(all="ignore"), spooled(rows, tmp_path / "out", "text") as path:
        assert path.read_bytes() == as_file(tmp_path, RECORDS).read_bytes()
    assert not (tmp_path / "out").exists()


def test_the_dataset_is_that_of_the_file(tmp_path: Path, expected: Path) -> None:
    report = run_here(generator(), tmp_path / "out", unit_bytes=UNIT_BYTES)
    assert report.documents == len(RECORDS)
    assert report.shards > 10
    assert content(tmp_path / "out") == content(expected)
    assert not list((tmp_path / "out").glob(".*"))
    both = (manifest(folder)["sources"]["train/web"] for folder in (tmp_path / "out", expected))
    assert len({one["fingerprint"] for one in both}) == 1


def test_missing_values_of_a_data_frame_are_none() -> None:
    frame = pd.DataFrame(
        {
            "text": pd.array(["a", pd.NA, "c"], dtype="string"),
            "n": [1.5, np.nan, 2],
            "at": [pd.NaT, pd.Timestamp(0), pd.NaT],
            "some": [[1], None, []],
            "whole": [2**53 + 1, 2, 3],
        }
    )
    files, rows = files_or_records(frame, "convert")
    expected = [
        {"text": "a", "n": 1.5, "at": None, "some": [1], "whole": 2**53 + 1},
        {"text": None, "n": None, "at": pd.Timestamp(0), "some": None, "whole": 2},
        {"text": "c", "n": 2.0, "at": None, "some": [], "whole": 3},
    ]
    assert rows is not None
    assert not files
    assert [[*rows] for _ in range(2)] == [expected] * 2, "it can be read again"


def test_of_a_dict_of_splits_the_one_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = datasets.DatasetDict(
        {name: datasets.Dataset.from_list([{"text": name}]) for name in ("train", "validation")}
    )
    for split in splits:
        run_here(splits, tmp_path / "out", split=split)
        assert f"of the splits 'train', 'validation', {split} is converted" in caplog.text
    assert decoded(tmp_path / "out", "train/web") == ["train"]
    assert decoded(tmp_path / "out", "validation/web") == ["validation"]
    with pytest.raises(InputError, match="DatasetDict of 'train', 'validation'; split='val' is no"):
        run_here(splits, tmp_path / "out", split="val")


def test_texts_ids_and_where_documents_came_from(tmp_path: Path) -> None:
    report = run_here((text for text in ("one", "", "three")), tmp_path / "out", text_key="body")
    assert report.documents == 3
    assert decoded(tmp_path / "out") == ["one", "", "three"]
    name, line = jaxdata.open_dataset(tmp_path / "out").source("train", "web").origin(2)[:2]
    assert name.startswith("records-")
    assert line == 3
    ids = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [[-100, 2], [3]]})
    report = run_here(ids, tmp_path / "ids", task="ids", labels_key="labels")
    assert (report.documents, report.tokens) == (2, 5)


def test_the_same_again_others_and_more(tmp_path: Path) -> None:
    records = [{"text": "one"}, {"text": "two"}]
    run_here(records, tmp_path / "out")
    before = tree(tmp_path / "out")
    assert run_here(iter(records), tmp_path / "out").already_complete
    assert tree(tmp_path / "out").keys() == before.keys()
    with pytest.raises(InputError, match=r"input 'records-.*' is new"):
        run_here([{"text": "three"}], tmp_path / "out")
    run_here([{"text": "three"}], tmp_path / "out", append=True)
    assert decoded(tmp_path / "out") == ["one", "two", "three"]
    assert not list((tmp_path / "out").glob(".*"))


def test_records_of_a_process_at_work_stay_and_those_of_one_killed_go(tmp_path: Path) -> None:
    with spooled([{"text": "one"}], tmp_path, "text") as mine:
        left = shutil.copytree(mine.parent, tmp_path / ".records-left")  # nobody locks these
        with spooled([{"text": "two"}], tmp_path, "text") as other:
            assert mine.exists()
        assert not other.parent.exists()
        assert not left.exists()
        assert mine.exists()
    assert not mine.parent.exists()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3),
)


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=1, max_size=4))
def test_a_file_holds_the_records(records: list[dict[str, Any]]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        spooled(iter(records), folder, "text") as path,
    ):
        assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == records


def test_values_that_json_does_not_know(tmp_path: Path) -> None:
    record = {
        "text": b"\xc3\xa9",
        "ids": np.arange(3, dtype=np.uint16),
        "score": np.float32(0.5),
        "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "price": Decimal("1.5"),
    }
    with spooled([record], tmp_path / "out", "text") as path:
        assert json.loads(path.read_bytes()) == {
            "text": "é",
            "ids": [0, 1, 2],
            "score": 0.5,
            "when": "2024-01-02T00:00:00+00:00",
            "price": "1.5",
        }
    assert not (tmp_path / "out").exists()


DEEP: list[Any] = []
for _ in range(10**4):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3], r"record 0 is a int: expected a string, or a dict with the key 'text'"),
        ([{"text": "a"}, {"image": object()}], "record 1 cannot be written as JSON .*object"),
        ([{"deep": DEEP}], "record 0 cannot be written as JSON .*recursion"),
        ([{"image": b"\xff"}], "record 0 cannot be written as JSON .*utf-8.*select_columns"),
        (iter(()), "there are no records to convert: the iterable is empty or exhausted"),
        (7, "convert got a int: expected files, folders or globs; or records: an iterable of"),
        (None, "convert got a NoneType: expected .* a pandas DataFrame, a pyarrow Table"),
        (datasets.DatasetDict(), "got a DatasetDict of nothing; split='train' is none of them"),
        ({"text": ["a"]}, r"got a dict of 'text'; .* of records a list, as \[\{\"text\": …\}\]"),
        ([b"text"], "^record 0 is a bytes: expected a string, or a dict with the key 'text'"),
        (["a text"], "^a text: no such file or folder; strings are paths: give texts as records"),
        (["word"], "^word: no such file or folder; strings are paths: give texts as records"),
        (pd.Series(["a text"]), "^a text: no such file .* give texts as records"),
        (pd.DataFrame({"text": []}), "there are no records to convert: the iterable is empty"),
    ],
)
def test_what_are_no_records(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run_here(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_records_and_files_or_machines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="records or files_from, not both"):
        run_here(RECORDS, tmp_path / "out", files_from=["list.txt"])
    with pytest.raises(InputError, match="other machines cannot read if the output is s3://b/data"):
        run(RECORDS, "s3://b/data", engine="ray")


def test_what_a_generator_raises_is_the_caller_s(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "one"
        raise OSError("the line is broken")

    with pytest.raises(OSError, match="the line is broken"):
        run_here(broken(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with (
        pytest.raises(InputError, match="out cannot be written: File exists"),
        spooled([{"text": "one"}], output=tmp_path / "out", text_key="text"),
    ):
        pass
    with spooled_stream(io.BytesIO(b"{}\n"), "memory://bucket/out") as path:
        assert path.read_bytes() == b"{}\n"
    assert not path.parent.exists()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    from jaxdata.base.errors import DatasetError
    from jaxdata.converter.inputs.given_records import _write

    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(DatasetError, match=r"cannot be written to /dev/full \(No space left"),
    ):
        _write(full, b"{}\n")


def piped(output: Path, *more: str) -> list[str]:
    return [
        "convert",
        "-",
        "--output",
        str(output),
        "--source",
        "web",
        "--tokenizer",
        "bytes",
        *more,
    ]


def test_standard_input_is_read_whole_once(tmp_path: Path) -> None:
    data = gzip.compress(b'{"text": "a"}\n{"text": "b"}\n')
    command = [sys.executable, "-m", "jaxdata", *piped(tmp_path / "out", "--workers", "1")]
    subprocess.run(command, input=data, check=True, capture_output=True)
    assert decoded(tmp_path / "out") == ["a", "b"]
    origin = jaxdata.open_dataset(tmp_path / "out").source("train", "web").origin(1)
    assert origin[0].startswith("standard-input-")
    assert origin[1] == 2
    assert not list((tmp_path / "out").glob(".*"))
    again = subprocess.run(command, input=data, check=True, capture_output=True)
    assert b"already complete: nothing to do" in again.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["x.jsonl"], "standard input (-) is read alone: convert it first"),
        (["--files-from", "list"], "standard input (-) is read alone: convert it first"),
        ([], "standard input is empty: expected lines of JSON"),
    ],
)
def test_standard_input_that_cannot_be_read(
    tmp_path: Path, more: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    done = commands.run(*piped(tmp_path / "out", *more), status=1)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {says}")
