"""Folders with files of all kinds: more of them are read, and what is not read is counted."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.converter.inputs.formats.base import format_named
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.errors import InputError
from tests.converter.here import run_here
from tests.converter.test_convert import decoded, manifest, quarantine, records, write_lines
from tests.format.trees import tree

TABLE = 'url,text\nu1,plain\nu2,"two\nlines, ""quoted"""\n\nu3\nu4,"bad"x\nu5,größe\n'
TEXTS = ["plain", 'two\nlines, "quoted"', "größe"]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def kept(folder: Path) -> list[Any]:
    docs = jaxdata.open_dataset(folder).source("train", "web")
    return [docs.kept(number) for number in range(len(docs))]


def test_other_kinds_are_counted_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "a.jsonl", records("a"))
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
    assert kept(tmp_path / "out") == [{"path": path} for path in paths]
    assert report.files_not_read == {}
    assert run_here(folder, tmp_path / "few").files_not_read == {".py": 1, ".rs.gz": 1}
    with pytest.raises(InputError, match=r"d\.py: unsupported .*--text-suffix \.py,\.rs"):
        run_here(folder / "sub/d.py", tmp_path / "none")
    assert run_here(folder / "sub/d.py", tmp_path / "one", text_suffix=["py"]).documents == 1


def archive(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


PACKED = {
    "a.csv": TABLE.encode(),
    "a.csv.gz": gzip.compress(b"\xef\xbb\xbf" + TABLE.encode()),
    "a.tsv.zst": zstandard.compress(TABLE.replace(",", "\t").encode()),
    "a.tar": archive("b/a.csv", TABLE.replace("\n", "\r\n").encode()),
}


@pytest.mark.parametrize("name", PACKED)
def test_tables_of_values(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, PACKED[name])
    report = run_here(file, tmp_path / "out", keep="url")
    texts = [text.replace("\r\n", "\n").replace("\t", ",") for text in decoded(tmp_path / "out")]
    assert texts == TEXTS
    assert kept(tmp_path / "out") == [{"url": "u1"}, {"url": "u2"}, {"url": "u5"}]
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "web")
    assert [docs.origin(number)[1] for number in range(3)] == [2, 3, 8]
    bad = quarantine(tmp_path / "out")
    assert [(one["line"], one["reason"].partition(":")[0]) for one in bad] == [
        (6, "not as many values as the header has columns"),
        (7, f"malformed {'TSV' if 'tsv' in name else 'CSV'}"),
    ]
    assert sum(report.quarantined.values()) == 2


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    twice = write(tmp_path / "a.csv", "text,text\na,b\n")
    with pytest.raises(InputError, match=r"a\.csv .*its header names the column 'text' twice"):
        run_here(twice, tmp_path / "out")
    other = write(tmp_path / "b.csv", "body\na\n")
    with pytest.raises(InputError, match=r"b\.csv:2 has 'body': name one of these with --text-key"):
        run_here(other, tmp_path / "out")
    write(tmp_path / "c.csv", b"text\nok\nl\xf6st\n" + b"x" * 99 + b'\n"open\n')
    report = run_here(tmp_path / "c.csv", tmp_path / "out", max_record_bytes=50)
    assert decoded(tmp_path / "out") == ["ok"]
    assert report.quarantined == {
        "longer than 50 bytes (--max-record-bytes)": 1,
        "malformed CSV: unexpected end of data": 1,
        "not UTF-8": 1,
    }


VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0\x1c\x1d\x1e\x85\u2028\u2029")
)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.sampled_from(["csv", "tsv"]))
def test_values_stay_as_they_are(rows: list[tuple[str, str]], name: str) -> None:
    import csv

    text = io.StringIO()
    delimiter = "," if name == "csv" else "\t"
    written = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    written.writerows([("text", "url"), *rows])
    data = text.getvalue().encode()
    found = list(format_named(name).records(io.BytesIO(data), ReadSettings(None)))
    assert [one for one in found if one != b""] == [{"text": a, "url": b} for a, b in rows]
    assert len(found) == data.count(b"\n")


def piped(output: Path, *more: str) -> list[str]:
    given = ["--output", str(output), "--source", "web", "--tokenizer", "bytes", "--workers", "1"]
    return [sys.executable, "-m", "jaxdata", "convert", "-", *given, *more]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(tmp_path: Path, pack: Any) -> None:
    data = pack(b"".join(line + b"\n" for line in records("a", "b")))
    subprocess.run(piped(tmp_path / "out"), input=data, check=True, capture_output=True)
    assert decoded(tmp_path / "out") == ["a", "b"]
    origin = jaxdata.open_dataset(tmp_path / "out").source("train", "web").origin(1)
    assert origin[0].startswith("standard-input-")
    assert origin[1] == 2
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    again = subprocess.run(piped(tmp_path / "out"), input=data, check=True, capture_output=True)
    assert b"already complete: nothing to do" in again.stdout


def test_standard_input_is_resumed_after_a_kill(tmp_path: Path) -> None:
    lines = b"".join(line + b"\n" for line in records(*(f"text {n}" * 50 for n in range(4_000))))
    words = piped(tmp_path / "out", "--unit-bytes", "20000")
    whole = piped(tmp_path / "whole", "--unit-bytes", "20000")
    subprocess.run(whole, input=lines, check=True, capture_output=True)
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin
        process.stdin.write(lines)
        process.stdin.close()
        while not list(tmp_path.glob("out/train/web/work/*.receipt")) and process.poll() is None:
            pass
        os.killpg(process.pid, signal.SIGKILL)
    left = list(tmp_path.glob("out/train/web/work/*.receipt"))
    done = subprocess.run([*words, "--resume"], input=lines, check=False, capture_output=True)
    assert (done.returncode, bool(left)) == (0, True), done.stderr
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["x.jsonl"], "standard input (-) is read alone: convert it first"),
        (["--files-from", "list"], "standard input (-) is read alone: convert it first"),
        ([], "standard input is empty: expected lines of JSON"),
    ],
)
def test_standard_input_that_cannot_be_read(tmp_path: Path, more: list[str], says: str) -> None:
    words = piped(tmp_path / "out", *more)
    done = subprocess.run(words, input="", check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {says}")
    assert json.dumps(done.stderr).count("Traceback") == 0
