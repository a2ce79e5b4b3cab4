"""What files a folder, glob or list stands for: none of our own, and none in silence."""

import gzip
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs, matches
from jaxdata.testing import write_dataset
from tests.converter.here import decoded, run_here, statistics

Patch = pytest.MonkeyPatch
START = '{"event": "start", "step": 0, "steps": 9, "backend": "cpu"}\n{"step": 0, "loss": 5.0}\n'


def write(path: Path, content: str | bytes = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(*given: Any, **options: Any) -> list[str]:
    return [file.name for file in find_inputs(*given, **options)]


def test_names_begin_below_what_holds_all(tmp_path: Path, monkeypatch: Patch) -> None:
    hidden = ("a/.hidden.txt", "a/.git/z.txt", "a/n.pdf")
    for name in ("b/x.jsonl", "a/x.jsonl", "a/deep/y.txt", *hidden):
        write(tmp_path / name)
    expected = ["a/deep/y.txt", "a/x.jsonl", "b/x.jsonl"]
    assert names(tmp_path) == expected
    assert names([tmp_path / "b", str(tmp_path / "a"), tmp_path / "a/x.jsonl"]) == expected
    assert names(str(tmp_path / "**/*.jsonl")) == expected[1:]
    monkeypatch.chdir(tmp_path / "a")
    assert (names(["../b/x.jsonl", "."]), names("x.jsonl")) == (expected, ["x.jsonl"])
    one = write(tmp_path / "lists/one", "# the first\n../a/x.jsonl\n\n")
    two = write(tmp_path / "lists/two", f"{tmp_path}/b/x*.jsonl\n../a/x.jsonl\n")
    assert names([], [one, two]) == ["a/x.jsonl", "b/x.jsonl"]


NO_INPUTS = [
    ("*.jsonl", "no such file or folder, and no file matches it as a glob"),
    ("me/notes", "A data set of the Hugging Face Hub is downloaded first .hf download "),
    ("a.pdf", r"a\.pdf: unsupported file type; expected \.csv, .*--set text_suffix=\.py,\.rs"),
    ("pile.bin", "give megatron:PREFIX or nanogpt:FILE in the place of a dataset"),
    (".", r"contains no file that ends in \.csv, .* or \.parquet; other"),
    ((), "no input files were given"),
    ("pipe.jsonl", r"pipe\.jsonl is a device or a pipe; expected a file or folder"),
    ("ds", "ds is a dataset of jaxdata, not text: give the files that it was made of"),
    ("both", "both contains several splits of a Hugging Face dataset; give the folder of one"),
    ("odd", r"the name of '\\udcff\.jsonl' is not UTF-8; rename the file"),
    ("cut", r"cut is not whole as save_to_disk wrote it \(KeyError\('data\.arrow'\)\)"),
]


@pytest.mark.parametrize(("given", "says"), NO_INPUTS)
def test_what_is_no_input_says_so(
    given: Any, says: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "pile.bin"):
        write(tmp_path / name)
    if given != ".":
        os.mkfifo("pipe.jsonl")
        write_dataset("ds", {"train/web": [[1, 0]]})
        write(tmp_path / "both/dataset_dict.json")
        write(tmp_path / "odd" / os.fsdecode(b"\xff.jsonl"))
        write(tmp_path / "cut/dataset_info.json")
        write(tmp_path / "cut/state.json", '{"_data_files": [{"filename": "x/data.arrow"}]}')
    with pytest.raises(InputError, match=says):
        find_inputs(given)
    with pytest.raises(InputError, match=r"files_from .*none cannot be read.*a text file"):
        find_inputs([], [tmp_path / "none"])


def test_globs_match_as_paths_do() -> None:
    for pattern, matching, others in (
        ("**/*.txt", ["a.txt", "c/d/a.txt"], [".c/a.txt", "c/.a.txt", "c/a.txt/b", "a"]),
        ("a+?/[bc].txt", ["a+x/b.txt", "a+y/c.txt"], ["aa/b.txt", "a+/b.txt", "a+x/d.txt"]),
        ("a?b/x[!]a]y/[.*]", ["aab/xzy/*"], ["a/b/xzy/*", "aab/x/y/*", "aab/xay/*"]),
        ("c/**", ["c/a", "c/d/a"], ["c/.a", "d/a", "c/.d/a"]),
        (".c/*.txt", [".c/a.txt"], ["c/a.txt", ".c/.a.txt"]),
    ):
        for name in [*matching, *others]:
            found = matches(f"gs://b/{name}".split("/"), f"gs://b/{pattern}".split("/"))
            assert found == (name in matching), name


def test_other_kinds_are_counted_and_texts_of_any_suffix_keep_their_path(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a.md", "b.rst", "c.html", "sub/d.py"):
        write(folder / name, f"<{name}>\n")
    write(folder / "e.RS.gz", gzip.compress(b"rust"))
    for name in ("b.PDF", "sub/c.pdf", "Makefile", ".hidden.exe", "d.1.Bin", "e.1.Bin.gz"):
        write(folder / name, "x")
    report = run_here(folder, tmp_path / "out", text_suffix=".py, .rs", keep="path")
    expected = ["<a.md>\n", "<b.rst>\n", "<c.html>\n", "rust", "<sub/d.py>\n"]
    assert decoded(tmp_path / "out") == expected
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "web")
    assert docs.kept(3) == {"path": "e.RS.gz"}
    assert report.files_not_read == {".pdf": 2, ".bin": 1, ".bin.gz": 1, "no suffix": 1}
    assert statistics(tmp_path / "out")["files_not_read"] == report.files_not_read


def test_what_is_made_here_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.txt", "text")
    write_dataset(tmp_path / "older", {"train/web": [[1, 0]]})
    (tmp_path / "cache").mkdir()
    write(tmp_path / "run/log.jsonl", START)
    write(tmp_path / "run/checkpoints/3/notes.txt", "text")
    others = {"a": '{"format": "other"}', "b": "[1]", "c": "no JSON", "d": '{"text": "a"}\n'}
    for name, content in others.items():
        write(tmp_path / name / ("log.jsonl" if name == "d" else "dataset.json"), content)
    expected = ["a.txt", "a/dataset.json", "b/dataset.json", "c/dataset.json", "d/log.jsonl"]
    write(tmp_path / "out/train/web/work/quarantine.jsonl")
    assert names(tmp_path, output=tmp_path / "out/") == expected
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sorted(one.removeprefix(f"{tmp_path}/") for one in said) == [
        "cache is left out of the inputs: it is the cache",
        "older is left out of the inputs: it is a dataset of jaxdata",
        "out is left out of the inputs: it is the output",
        "run is left out of the inputs: it is a run of jaxdata",
    ]
    assert len(names(tmp_path)) == 6


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called meanwhile; a step of a generator is a call."""
    events: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: events.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]


def corpus(folder: Path, count: int) -> Path:
    for number in range(count):
        write(folder / f"{number % 7}" / f"{number:04}.txt", f"text {number}")
    return folder


def test_four_times_the_files_are_four_times_the_work(tmp_path: Path) -> None:
    run_here(corpus(tmp_path / "first", 1), tmp_path / "out")  # imports what is needed
    for what in ("some", "some", "more"):  # converted, finished, appended
        work = []
        for count in (60, 240):
            corpus((inputs := tmp_path / f"{count}") / what, count)
            options = {"append": what == "more", "unit_bytes": 200}
            output = tmp_path / f"out-{count}"
            work.append(calls(lambda: run_here(inputs, output, **options)))  # noqa: B023
        few, many = work
        assert many <= 4 * few, f"{what}: {few:,} calls for 60, {many:,} for 240"
