"""What describes other files, made to do harm: refused, in a line, before any of them is opened.

Checksums are right wherever that makes it worse.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset.verify import verify
from jaxdata.foreign.materialize import verify_rows
from jaxdata.testing import write_dataset
from tests import commands
from tests.damage.harm import content, little_memory, seal, sealed, set_value
from tests.damage.specimens import copied, make_rows, make_small

Change = Callable[[dict[str, Any]], object]
WEB = ("sources", "train/web")
FIRST = (*WEB, "shards", 0)
NAME = "is not the name of a file below it"


def _grown(**later: Any) -> Change:
    """A source with a generation before, that differs in `later`."""

    def change(fields: dict[str, Any]) -> None:
        entry = fields["sources"]["train/web"]
        names = ("documents", "tokens", "fingerprint", "parameters", "statistics", "checksums")
        was = {name: entry[name] for name in names} | {"shards": 1, "inputs": 1, "index": "index"}
        entry |= {"generations": [was | later], "index": "index-1"}

    return change


DEEP = json.loads('{"a":' * 40 + "1" + "}" * 40)
_SOURCE = "sources.train/web"


def _more_tokens(fields: dict[str, Any]) -> None:
    """More than the first shard has bytes for, and none in the other."""
    for place, count in (((*WEB, "tokens"), 2**20), ((*FIRST, "tokens"), 2**20),
                         ((*WEB, "shards", 1, "tokens"), 0)):  # fmt: skip
        set_value(*place, to=count)(fields)


def _renamed(fields: dict[str, Any]) -> None:
    fields["sources"]["../web"] = fields["sources"].pop("train/web")


def _without_a_checksum(fields: dict[str, Any]) -> None:
    del fields["sources"]["train/web"]["checksums"]["page"]


DATASETS: list[tuple[Change, str]] = [
    (set_value(*FIRST, "name", to="../x.array_record"),
     f"{_SOURCE}.shards.0.name: '../x.array_record' {NAME}"),
    (_renamed, f"sources.../web.[key]: '../web' {NAME}"),
    (set_value(*WEB, "index", to="../code/index"), f"{_SOURCE}.index: '../code/index' {NAME}"),
    (set_value("files", to={"/\x1b[2J": "0" * 64}), f"files./\\x1b[2J.[key]: '/\\x1b[2J' {NAME}"),
    (set_value("record_tokens", to=10**12),
     "record_tokens: Input should be less than or equal to 1048576, not 1000000000000"),
    (set_value(*WEB, "deleted", to={"documents": 21, "tokens": 0}),
     "train/web lacks more documents than it has"),
    (set_value(*WEB, "tokens", to=float("nan")),
     f"{_SOURCE}.tokens: Input should be a finite number"),
    (set_value(*WEB, "statistics", to=DEEP),
     f"{_SOURCE}.statistics: it is nested more than 32 deep"),
    (set_value("run", to="rm -rf ~"), "run: Extra inputs are not permitted"),
    (_grown(documents=21), f"{_SOURCE}: the documents of its generations do not rise"),
    (_grown(index="index-1"), f"{_SOURCE}: two of its generations have the same index"),
    (set_value(*WEB, "documents", to=2), "train/web has 2 documents, its shards together 20"),
    (_more_tokens, "train/web/00000-00000.array_record cannot hold 12 documents of 1,048,576 "
     "tokens in 131,072 bytes"),
    (_without_a_checksum, "train/web has no checksum of its column 'page'"),
]  # fmt: skip
ROWS: list[tuple[Change, str]] = [
    (set_value("shards", 0, "name", to="../../x"), f"shards.0.name: '../../x' {NAME}"),
    (set_value("rows", to=2**53), f"its shards do not hold {2**53:,} rows, 10 each"),
    (set_value("fields", 0, 1, to="|O"), "or objects"),
    (set_value("fields", 0, 2, to=[2**30, 2**30]), ""),
    (set_value("run", "a", to=DEEP), "run: it is nested more than 32 deep"),
]
KINDS: dict[str, Any] = {
    "dataset.json": (DATASETS, make_small, jaxdata.open_dataset, verify),
    "rows.json": (ROWS, make_rows, jaxdata.open_rows, verify_rows),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("whole")
    for file, (_, make, *_) in KINDS.items():
        make(root / file)
    return {file: root / file for file in KINDS}


@pytest.mark.parametrize(
    ("file", "change", "says"), [(file, *row) for file in KINDS for row in KINDS[file][0]]
)
def test_a_description_is_refused_before_anything_is_opened(
    whole: dict[str, Path], file: str, change: Change, says: str
) -> None:
    with copied(whole[file]) as copy, mock.patch("os.open", wraps=os.open) as opened:
        path = copy / file
        sealed(change)(path)
        said = rf"^{path} is damaged \(.*{re.escape(says)}.*\): restore it from a copy$"
        for use in KINDS[file][2:]:
            opened.reset_mock()
            with little_memory(), pytest.raises(DatasetError, match=said):
                use(copy)
            assert {str(call.args[0]) for call in opened.mock_calls} == {str(path)}


CONTENTS: list[tuple[bytes, str]] = [
    (b"", "is damaged (JSONDecodeError: Expecting value: line 1 column 1 (char 0))"),
    (b"[" * 10**6, "is damaged (it is nested too deep)"),
    (b'{"version": ' + b"9" * 10**5 + b"}", "is damaged (ValueError: Exceeds "),
    (b'{"version": "\\u001b[31m"}', "has format version \\x1b[31m; this"),
    (seal({"version": "9" * 5000}), f"has format version {'9' * 19}…; "),
]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_commands_say_in_a_line_what_is_no_manifest(whole: dict[str, Path], command: str) -> None:
    with copied(whole["dataset.json"]) as folder:
        for data, says in CONTENTS:
            content(data)(folder / "dataset.json")
            with little_memory():
                done = commands.run(command, folder, status=1)
            assert not done.stdout
            assert done.stderr.startswith(f"error: {folder}/dataset.json {says}")
            assert len(done.stderr) < 500
            assert done.stderr[:-1].isprintable()


def test_no_name_reaches_the_terminal_as_a_code(tmp_path: Path) -> None:
    name = "train/we\x1b[31mb"
    write_dataset(tmp_path / "d", {name: [[1, 2, 0]]})
    shutil.rmtree(tmp_path / "d" / name / "index")
    for command in ("inspect", "verify"):
        done = commands.run(command, tmp_path / "d", status=1)
        assert "\x1b" not in done.stdout + done.stderr
        assert "we\\x1b[31mb/index" in done.stdout + done.stderr
