"""A search for texts finds no output and no dataset: the same command can be given again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import jaxdata
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.errors import InputError
from jaxdata.testing import write_dataset
from jaxdata.testing.buckets import bucket_server
from tests.format.buckets.conftest import use

START = '{"event": "start", "step": 0, "steps": 9, "backend": "cpu"}\n{"step": 0, "loss": 5.0}\n'


def names(found: list) -> list[str]:
    return [file.name for file in found]


def test_a_folder_is_converted_into_itself_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("text")
    write_dataset(tmp_path / "older", {"train/web": [[1, 0]]})
    (tmp_path / "cache").mkdir()
    given = {"output": tmp_path / "out", "source": "web", "tokenizer": "bytes", "workers": 1}
    first = jaxdata.convert(tmp_path, **given)
    again = jaxdata.convert(tmp_path, **given)
    assert (first.documents, first.already_complete) == (1, False)
    assert again.already_complete
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{tmp_path}/out is left out of the inputs: it is the output" in said
    assert f"{tmp_path}/cache is left out of the inputs: it is the cache" in said
    assert f"{tmp_path}/older is left out of the inputs: it is a dataset of jaxdata" in said


def test_an_output_that_was_begun_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "out/train/web/work").mkdir(parents=True)
    (tmp_path / "out/train/web/work/quarantine.jsonl").write_text("{}")
    assert names(find_inputs(tmp_path, output=tmp_path / "out/")) == ["a.txt"]
    assert len(find_inputs(tmp_path)) == 2


def test_a_run_is_no_input_and_another_log_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, line in {"run": START, "other": '{"text": "a"}\n', "broken": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text(line)
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    (tmp_path / "run/checkpoints/3/notes.txt").write_text("text")
    assert names(find_inputs(tmp_path)) == ["broken/log.jsonl", "other/log.jsonl"]
    assert f"{tmp_path}/run is left out of the inputs: it is a run of jaxdata" in caplog.messages


def test_a_dataset_of_somebody_else_is_searched(tmp_path: Path) -> None:
    for name, content in {"a": '{"format": "other"}', "b": "[1]", "c": "no JSON"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(content)
    assert len(find_inputs(tmp_path)) == 3


def test_a_dataset_is_not_converted(tmp_path: Path) -> None:
    write_dataset(tmp_path / "ds", {"train/web": [[1, 0]]})
    with pytest.raises(InputError, match="ds is a dataset that jaxdata made, not text: give the"):
        find_inputs(tmp_path / "ds")


def test_buckets_are_searched_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs jaxdata[buckets]")
    with bucket_server("s3") as server:
        use(server, monkeypatch)
        for name in ("a.txt", "out/train/web/0.jsonl", "other/dataset.json", "more/x/b.txt"):
            server.write(f"texts/{name}", b"{}")
        write_dataset("s3://texts/more/ds", {"train/web": [[1, 0]]})
        found = find_inputs("s3://texts/", output="s3://texts/out")
        assert names(found) == ["a.txt", "more/x/b.txt", "other/dataset.json"]
        with pytest.raises(InputError, match="s3://texts/more/ds is a dataset that jaxdata made"):
            find_inputs("s3://texts/more/ds/")
