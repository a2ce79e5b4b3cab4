"""What files a folder, glob or list stands for: none of our own, and none in silence."""

from __future__ import annotations

import gzip
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.testing import write_dataset
from tests.converter.here import run_here
from tests.converter.test_convert import decoded, manifest

START = '{"event": "start", "step": 0, "steps": 9, "backend": "cpu"}\n{"step": 0, "loss": 5.0}\n'


def write(path: Path, content: str | bytes = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(found: list[Any]) -> list[str]:
    return [file.name for file in found]


def test_names_are_relative_to_what_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "b/x.jsonl",
        "a/x.jsonl",
        "a/deep/y.txt",
        "a/.hidden.txt",
        "a/.git/z.txt",
        "a/n.pdf",
    ):
        write(tmp_path / name)
    expected = ["a/deep/y.txt", "a/x.jsonl", "b/x.jsonl"]
    assert names(find_inputs(tmp_path)) == expected
    folders = [tmp_path / "b", str(tmp_path / "a"), tmp_path / "a/x.jsonl"]
    assert names(find_inputs(folders)) == expected
    assert names(find_inputs(str(tmp_path / "**/*.jsonl"))) == expected[1:]
    monkeypatch.chdir(tmp_path / "a")
    assert names(find_inputs(["../b/x.jsonl", "."])) == expected
    assert names(find_inputs("x.jsonl")) == ["x.jsonl"]


def test_inputs_that_are_none_say_so(tmp_path: Path) -> None:
    other = write(tmp_path / "a.pdf", b"x")
    with pytest.raises(InputError, match="no such file or folder, and no file matches this glob"):
        find_inputs(tmp_path / "*.jsonl")
    with pytest.raises(InputError, match=r"unsupported file type; expected \.csv, "):
        find_inputs(other)
    with pytest.raises(InputError, match=r"contains no file that ends in \.csv, .* or \.parquet"):
        find_inputs(tmp_path)
    with pytest.raises(InputError, match="no input files were given"):
        find_inputs([])
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "link.jsonl"):
        with pytest.raises(InputError, match=f"{name} is a device or a pipe; expected a file or f"):
            find_inputs(tmp_path / name)


def test_files_of_token_ids_are_named_as_what_they_are_read_by(tmp_path: Path) -> None:
    nanogpt, megatron, index = (
        write(tmp_path / name, b"\0\0") for name in ("train.bin", "pile.bin", "pile.idx")
    )
    for file, spec in (
        (nanogpt, f"nanogpt:{nanogpt}"),
        (megatron, f"megatron:{tmp_path}/pile"),
        (index, f"megatron:{tmp_path}/pile"),
    ):
        with pytest.raises(InputError, match=f"{file}: if .* not text, .*: give {spec} in the "):
            find_inputs(file)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    try:
        write(tmp_path / os.fsdecode(b"a\xff.txt"), b"x")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(InputError, match="is not UTF-8; rename the file"):
        find_inputs(tmp_path)


def test_lists_of_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.jsonl", f'{{"text": "{name}"}}\n')
    one = write(tmp_path / "lists/one", "# the first\n../a.jsonl\n\n")
    two = write(tmp_path / "lists/two", f"{tmp_path}/c*.jsonl\n../a.jsonl\n")
    assert names(find_inputs([], [one, two])) == ["a.jsonl", "c.jsonl"]
    with pytest.raises(InputError, match=r"--files-from .*none cannot be read.*a text file with"):
        find_inputs([], [tmp_path / "none"])
    one.write_text("../missing.jsonl")
    with pytest.raises(InputError, match=r"missing\.jsonl: no such file or folder"):
        find_inputs([], [one])


def test_a_saved_dataset_of_several_splits_asks_for_one(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    one = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"several splits.*give one of .*both/test, .*both/train"):
        find_inputs(tmp_path / "both")
    assert len(find_inputs(tmp_path / "both/train")) == 1
    (tmp_path / "both/train/data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"lacks 'data-00000-of-00001\.arrow'"):
        find_inputs(tmp_path / "both/train")
    (tmp_path / "both/train/state.json").write_text("[" * 10**5)
    with pytest.raises(InputError, match=r"state\.json was not written by save_to_disk"):
        find_inputs(tmp_path / "both/train")


def test_other_kinds_are_counted_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "a.jsonl", '{"text": "a"}\n')
    for name in ("b.PDF", "sub/c.pdf", "sub/d.bin.gz", "Makefile", ".hidden.exe"):
        write(folder / name, "x")
    report = run_here(folder, tmp_path / "out")
    counts = {".bin.gz": 1, ".pdf": 2, "no suffix": 1}
    assert report.files_not_read == counts
    more = replace(report, files_not_read=dict.fromkeys(("a", "b", "c", "d", "e"), 1))
    assert "(1 a; 1 b; 1 c; 2 other kinds)" in str(more)
    says = "; passed over 4 files of other kinds (2 .pdf; 1 .bin.gz; 1 no suffix)"
    assert str(report).splitlines()[0].endswith(f"from 1 file{says}")
    statistics = manifest(tmp_path / "out")["sources"]["train/web"]["statistics"]
    assert statistics["files_not_read"] == counts
    assert says in str(run_here(folder, tmp_path / "out")), "of a finished one, too"
    run_here(folder / "a.jsonl", tmp_path / "alone")
    statistics = manifest(tmp_path / "alone")["sources"]["train/web"]["statistics"]
    assert "files_not_read" not in statistics


def test_texts_of_any_suffix_keep_their_path(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a.md", "b.rst", "c.html", "sub/d.py"):
        write(folder / name, f"<{name}>\n")
    write(folder / "e.RS.gz", gzip.compress(b"rust"))
    report = run_here(folder, tmp_path / "out", text_suffix=".py, .rs", keep="path")
    assert decoded(tmp_path / "out") == [
        "<a.md>\n",
        "<b.rst>\n",
        "<c.html>\n",
        "rust",
        "<sub/d.py>\n",
    ]
    paths = ["a.md", "b.rst", "c.html", "e.RS.gz", "sub/d.py"]
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "web")
    assert [docs.kept(number)["path"] for number in range(len(docs))] == paths
    assert report.files_not_read == {}
    assert run_here(folder, tmp_path / "few").files_not_read == {".py": 1, ".rs.gz": 1}
    with pytest.raises(InputError, match=r"d\.py: unsupported .*--text-suffix \.py,\.rs"):
        run_here(folder / "sub/d.py", tmp_path / "none")
    assert run_here(folder / "sub/d.py", tmp_path / "one", text_suffix=["py"]).documents == 1


def test_a_folder_is_converted_into_itself_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("text")
    write_dataset(tmp_path / "older", {"train/web": [[1, 0]]})
    (tmp_path / "cache").mkdir()
    first, again = (run_here(tmp_path, tmp_path / "out") for _ in range(2))
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


FEW, MANY = 60, 240


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called meanwhile; a step of a generator is a call."""
    count = 0

    def called(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def corpus(folder: Path, count: int) -> Path:
    for number in range(count):
        write(folder / f"{number % 7}" / f"{number:04}.txt", f"text {number}")
    return folder


def test_four_times_the_files_are_four_times_the_work(tmp_path: Path) -> None:
    run_here(corpus(tmp_path / "first", 1), tmp_path / "out")  # imports what is needed
    for what in ("convert", "finished", "append"):
        work = []
        for count in (FEW, MANY):
            inputs = tmp_path / f"{count}"
            if what == "append":
                corpus(inputs / "more", count)
            else:
                corpus(inputs / "some", count)
            options = {"append": what == "append", "unit_bytes": 200}
            output = tmp_path / f"out-{count}"
            work.append(calls(lambda: run_here(inputs, output, **options)))  # noqa: B023
        few, many = work
        assert many <= MANY / FEW * few, f"{what}: {few:,} calls for {FEW}, {many:,} for {MANY}"
