"""Manifests that a stranger made to do harm: each is refused before a file it names is opened.

Checksums are right wherever that makes it worse.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import DatasetError
from jaxdata.format.verify import verify
from jaxdata.testing import write_dataset
from tests.format.strangers import edit_json, little_memory, seal, set_key, set_value, write_small

WEB = ("sources", "train/web")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("hostile") / "d")


@pytest.fixture
def dataset(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "d")


def _deep(levels: int) -> dict[str, Any]:
    return {"a": _deep(levels - 1)} if levels else {}


def _grown(**later: Any) -> Callable[[dict[str, Any]], None]:
    """A source with a generation before, that differs in `later`."""

    def change(fields: dict[str, Any]) -> None:
        entry = fields["sources"]["train/web"]
        names = ("documents", "tokens", "fingerprint", "parameters", "statistics", "checksums")
        was = {name: entry[name] for name in names} | {"shards": 1, "inputs": 1, "index": "index"}
        entry |= {"generations": [was | later], "index": "index-1"}

    return change


NAME = "is not the name of a file below it"
MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a shard outside": (
        set_value(*WEB, "shards", 0, "name", to="../x.array_record"),
        f"sources.train/web.shards.0.name: '../x.array_record' {NAME}",
    ),
    "a shard by way of the folder": (
        set_value(*WEB, "shards", 1, "name", to="train/../../d/x"),
        f"sources.train/web.shards.1.name: 'train/../../d/x' {NAME}",
    ),
    "an absolute shard": (
        set_value(*WEB, "shards", 0, "name", to="/etc/passwd"),
        f"sources.train/web.shards.0.name: '/etc/passwd' {NAME}",
    ),
    "a name with a zero byte": (
        set_value(*WEB, "shards", 0, "name", to="a\0b"),
        f"sources.train/web.shards.0.name: 'a\\x00b' {NAME}",
    ),
    "a name without end": (
        set_value(*WEB, "shards", 0, "name", to="a" * 1025),
        "sources.train/web.shards.0.name: String should have at most 1024 characters",
    ),
    "no name": (
        set_value(*WEB, "shards", 0, "name", to=7),
        "sources.train/web.shards.0.name: Input should be a valid string",
    ),
    "a source outside": (
        set_key("sources", "train/web", to="../web"),
        f"sources.../web.[key]: '../web' {NAME}",
    ),
    "an index outside": (
        set_value(*WEB, "index", to=".."),
        f"sources.train/web.index: '..' {NAME}",
    ),
    "an index elsewhere": (
        set_value(*WEB, "index", to="../code/index"),
        f"sources.train/web.index: '../code/index' {NAME}",
    ),
    "a tokenizer outside": (
        set_value("tokenizer", "files", to={"../../secret": "0" * 64}),
        f"tokenizer.files.../../secret.[key]: '../../secret' {NAME}",
    ),
    "a file that never ends": (
        set_value("files", to={"/dev/zero": "0" * 64}),
        f"files./dev/zero.[key]: '/dev/zero' {NAME}",
    ),
    "a terminal's code in a name": (
        set_value("files", to={"/\x1b[2J": "0" * 64}),
        f"files./\\x1b[2J.[key]: '/\\x1b[2J' {NAME}",
    ),
    "no tokens a record": (
        set_value("record_tokens", to=0),
        "record_tokens: Input should be greater than or equal to 1, not 0",
    ),
    "fewer than no tokens": (
        set_value("record_tokens", to=-5),
        "record_tokens: Input should be greater than or equal to 1, not -5",
    ),
    "records beyond memory": (
        set_value("record_tokens", to=10**12),
        "record_tokens: Input should be less than or equal to 536870912, not 1000000000000",
    ),
    "fewer than no documents": (
        set_value(*WEB, "shards", 0, "documents", to=-1),
        "sources.train/web.shards.0.documents: Input should be greater than or equal to 0, not -1",
    ),
    "more documents than numbers": (
        set_value(*WEB, "documents", to=2**62),
        f"sources.train/web.documents: Input should be less than or equal to {2**53}, not {2**62}",
    ),
    "a number that is none": (
        set_value(*WEB, "tokens", to=float("nan")),
        "sources.train/web.tokens: Input should be a finite number",
    ),
    "no vocabulary": (
        set_value("tokenizer", "vocab_size", to=0),
        "tokenizer.vocab_size: Input should be greater than or equal to 1, not 0",
    ),
    "an id beyond all": (
        set_value("tokenizer", "eod_id", to=2**40),
        f"tokenizer.eod_id: Input should be less than or equal to 4294967295, not {2**40}",
    ),
    "facts too deep": (
        set_value(*WEB, "statistics", to=_deep(40)),
        "sources.train/web.statistics: it is nested more than 32 deep",
    ),
    "another dtype": (
        set_value("dtype", to="float64"),
        "dtype: Input should be 'uint16' or 'uint32'",
    ),
    "a field of its own": (
        set_value("run", to="rm -rf ~"),
        "run: Extra inputs are not permitted",
    ),
    "documents that were lost": (
        _grown(documents=21),
        "sources.train/web: the documents of its generations do not rise",
    ),
    "more shards before than now": (
        _grown(shards=9),
        "sources.train/web: the shards of its generations do not rise",
    ),
    "one index twice": (
        _grown(index="index-1"),
        "sources.train/web: two of its generations have the same index",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_refused_before_anything_is_opened(
    dataset: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, says = MANIFESTS[name]
    file = dataset / "dataset.json"
    edit_json(file, change)
    opened: set[str] = set()
    really_open = os.open

    def spy(path: Any, flags: int) -> int:
        opened.add(str(path))
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", spy)
    for use in (jaxdata.open_dataset, verify):
        with little_memory(), pytest.raises(DatasetError) as error:
            use(dataset)
        assert str(error.value) == f"{file} is damaged ({says}): restore it from a copy"
    assert opened == {str(file)}


CONTENTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is damaged (JSONDecodeError: Expecting value: line 1 column 1 (char 0))"),
    "no JSON": (b"text", "is damaged (JSONDecodeError: "),
    "no text": (b"{\x80}", "is damaged (UnicodeDecodeError: "),
    "no object": (b"[]", "is damaged (TypeError: "),
    "a text": (b'"dataset"', "is damaged (TypeError: "),
    "brackets": (b"[" * 10**6, "is damaged (it is nested too deep)"),
    "braces": (b'{"version":' * 10**5, "is damaged (it is nested too deep)"),
    "digits": (b'{"version": ' + b"9" * 10**5 + b"}", "is damaged (ValueError: Exceeds "),
    "a later version": (
        b'{"version": 2}',
        "has format version 2; this jaxdata reads version 1: in",
    ),
    "a version with colours": (b'{"version": "\\u001b[31m"}', "has format version \\x1b[31m; this"),
    "a version without end": (seal({"version": "9" * 5000}), f"has format version {'9' * 20}…; "),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_manifest_is_said_in_a_line(dataset: Path, name: str) -> None:
    content, says = CONTENTS[name]
    (dataset / "dataset.json").write_bytes(content)
    for use in (jaxdata.open_dataset, verify):
        with little_memory(), pytest.raises(DatasetError) as error:
            use(dataset)
        assert str(error.value).startswith(f"{dataset}/dataset.json {says}")
        assert len(str(error.value)) < 500
        assert str(error.value).isprintable()


@pytest.mark.parametrize("name", [*MANIFESTS, *CONTENTS])
def test_commands_end_in_a_line(
    dataset: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in MANIFESTS:
        edit_json(dataset / "dataset.json", MANIFESTS[name][0])
    else:
        (dataset / "dataset.json").write_bytes(CONTENTS[name][0])
    for command in ("inspect", "verify"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(dataset)])
        assert ended.value.code == 1
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith(f"error: {dataset}/dataset.json ")
        assert err[:-1].isprintable()


def test_no_name_reaches_the_terminal_as_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "train/we\x1b[31mb"
    write_dataset(tmp_path / "d", {name: [[1, 2, 0]]})
    shutil.rmtree(tmp_path / "d" / name / "index")
    for command in ("inspect", "verify"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(tmp_path / "d")])
        assert ended.value.code == 1
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "we\\x1b[31mb/index" in out + err


@pytest.mark.parametrize("statistics", [{"files": 7}, {"files": {"processed": "many"}}])
def test_statistics_of_a_stranger_are_no_traceback(
    dataset: Path, statistics: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(dataset / "dataset.json", set_value(*WEB, "statistics", to=statistics))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(dataset), "--statistics"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(
        "error: the statistics of train/web are not as the converter writes them ("
    )


def test_a_preview_of_what_is_no_dataset_is_a_check_that_failed(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(dataset / "dataset.json", set_value(*WEB, "shards", 0, "name", to="../x"))
    (tmp_path / "run.yaml").write_text(f"dataset: {dataset}\npack: {{seq_len: 16}}\n")
    says = f"{dataset}/dataset.json is damaged (sources.train/web.shards.0.name: '../x' {NAME}): "
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["preview", "--config", str(tmp_path / "run.yaml"), *options])
        assert ended.value.code == 1
        out = capsys.readouterr().out
        if options:
            (check,) = json.loads(out)["checks"]
            assert (check["name"], check["ok"]) == ("manifest", False)
            assert check["says"].startswith(says)
        else:
            assert out.startswith(f"FAILED  manifest  {says}")
