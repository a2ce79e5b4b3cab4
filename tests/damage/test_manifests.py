"""What describes other files, made to do harm: refused, in a line, before any of them is opened.

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
from jaxdata.base.errors import DatasetError
from jaxdata.dataset.verify import verify
from jaxdata.foreign.row_records import verify_rows
from jaxdata.testing import write_dataset
from tests import commands
from tests.damage.harm import content, sealed
from tests.damage.specimens import make_rows, make_small
from tests.dataset.strangers import little_memory, seal, set_key, set_value

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


def _shards(fields: dict[str, Any]) -> list[Any]:
    """The first shard of `train/code` twice, and sums of that."""
    first, _ = fields["sources"]["train/code"]["shards"]
    fields["sources"]["train/code"] |= {n: 2 * first[n] for n in ("documents", "tokens")}
    return [first, first]


def _least(value: int, given: int) -> str:
    return f"Input should be greater than or equal to {value}, not {given}"


def _most(value: int, given: int) -> str:
    return f"Input should be less than or equal to {value}, not {given}"


DEEP = json.loads('{"a":' * 40 + "1" + "}" * 40)
DATASETS: dict[str, tuple[Change, str]] = {
    "a shard outside": (
        set_value(*FIRST, "name", to="../x.array_record"),
        f"sources.train/web.shards.0.name: '../x.array_record' {NAME}",
    ),
    "a shard by way of the folder": (
        set_value(*FIRST, "name", to="train/../../d/x"),
        f"sources.train/web.shards.0.name: 'train/../../d/x' {NAME}",
    ),
    "a name without end": (
        set_value(*FIRST, "name", to="a" * 1025),
        "sources.train/web.shards.0.name: String should have at most 1024 characters",
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
    "a terminal's code in a name": (
        set_value("files", to={"/\x1b[2J": "0" * 64}),
        f"files./\\x1b[2J.[key]: '/\\x1b[2J' {NAME}",
    ),
    "no tokens a record": (set_value("record_tokens", to=0), f"record_tokens: {_least(1, 0)}"),
    "records beyond memory": (
        set_value("record_tokens", to=10**12),
        f"record_tokens: {_most(2**20, 10**12)}",
    ),
    "more deleted than there is": (
        set_value(*WEB, "deleted", to={"documents": 21, "tokens": 0}),
        "train/web lacks more documents than it has",
    ),
    "deleted documents without numbers": (
        set_value(*WEB, "deleted", to={"documents": 1, "tokens": 1}),
        "train/web has no checksum of its column 'deleted'",
    ),
    "less than no documents": (
        set_value(*FIRST, "documents", to=-1),
        f"sources.train/web.shards.0.documents: {_least(0, -1)}",
    ),
    "more documents than numbers": (
        set_value(*WEB, "documents", to=2**62),
        f"sources.train/web.documents: {_most(2**53, 2**62)}",
    ),
    "a number that is none": (
        set_value(*WEB, "tokens", to=float("nan")),
        "sources.train/web.tokens: Input should be a finite number",
    ),
    "no vocabulary": (
        set_value("tokenizer", "vocab_size", to=0),
        f"tokenizer.vocab_size: {_least(1, 0)}",
    ),
    "an id beyond all": (
        set_value("tokenizer", "eod_id", to=2**40),
        f"tokenizer.eod_id: {_most(2**32 - 1, 2**40)}",
    ),
    "facts too deep": (
        set_value(*WEB, "statistics", to=DEEP),
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
    "a field that lacks": (
        lambda fields: fields["sources"]["train/web"].pop("fingerprint"),
        "sources.train/web.fingerprint: Field required",
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
    "fewer documents than its shards": (
        set_value(*WEB, "documents", to=2),
        "train/web has 2 documents, its shards together 20",
    ),
    "more tokens than its shards": (
        set_value(*WEB, "tokens", to=2**40),
        f"train/web has {2**40:,} tokens, its shards together 252",
    ),
    "a shard of more tokens than it has bytes": (
        lambda fields: (
            [
                set_value(*place, to=2**20)(fields)
                for place in ((*WEB, "tokens"), (*WEB, "shards", 0, "tokens"))
            ]
            and set_value(*WEB, "shards", 1, "tokens", to=0)(fields)
        ),
        "train/web/00000-00000.array_record cannot hold 12 documents of 1,048,576 tokens in "
        "131,072 bytes",
    ),
    "a shard named twice": (
        lambda fields: set_value("sources", "train/code", "shards", to=[*_shards(fields)])(fields),
        "it names train/code/00000-00000.array_record twice",
    ),
    "a column without checksum": (
        lambda fields: fields["sources"]["train/web"]["checksums"].pop("page"),
        "train/web has no checksum of its column 'page'",
    ),
}
ROWS: dict[str, tuple[Change, str]] = {
    "a shard outside": (
        set_value("shards", 0, "name", to="../../x"),
        f"shards.0.name: '../../x' {NAME}",
    ),
    "no rows a shard": (set_value("shard_rows", to=0), f"shard_rows: {_least(1, 0)}"),
    "rows without end": (
        set_value("rows", to=2**53),
        f"its shards do not hold {2**53:,} rows, 10 each",
    ),
    "no shards": (set_value("shards", to=[]), " rows, 10 each"),
    "a shard of more rows": (set_value("shards", 1, "rows", to=11), " rows, 10 each"),
    "arrays of objects": (set_value("fields", 0, 1, to="|O"), "or objects"),
    "arrays beyond memory": (set_value("fields", 0, 2, to=[2**30, 2**30]), ""),
    "arrays of nothing": (set_value("fields", to=[]), "fields: a row of these arrays has 0 bytes"),
    "a run too deep": (set_value("run", "a", to=DEEP), "run: it is nested more than 32 deep"),
}
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


@pytest.fixture
def copy(whole: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda file: shutil.copytree(whole[file], tmp_path / "d")


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file in KINDS for name in KINDS[file][0]]
)
def test_a_description_is_refused_before_anything_is_opened(
    copy: Callable[[str], Path], file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, _, *uses = KINDS[file]
    change, says = changes[name]
    path = copy(file) / file
    sealed(change)(path)
    opened: set[str] = set()
    really_open = os.open

    def spy(path: Any, flags: int) -> int:
        opened.add(str(path))
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", spy)
    for use in uses:
        with little_memory(), pytest.raises(DatasetError) as error:
            use(path.parent)
        if file == "dataset.json":
            assert str(error.value) == f"{path} is damaged ({says}): restore it from a copy"
        assert str(error.value).startswith(f"{path} is damaged (")
        assert f"{says}" in str(error.value)
    assert opened == {str(path)}


CONTENTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is damaged (JSONDecodeError: Expecting value: line 1 column 1 (char 0))"),
    "no JSON": (b"text", "is damaged (JSONDecodeError: "),
    "no object": (b"[]", "is damaged (TypeError: "),
    "brackets": (b"[" * 10**6, "is damaged (it is nested too deep)"),
    "digits": (b'{"version": ' + b"9" * 10**5 + b"}", "is damaged (ValueError: Exceeds "),
    "a later version": (b'{"version": 3}', "has format version 3; this jaxdata reads version 2: "),
    "a version with colours": (b'{"version": "\\u001b[31m"}', "has format version \\x1b[31m; this"),
    "a version without end": (seal({"version": "9" * 5000}), f"has format version {'9' * 20}…; "),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_commands_say_in_a_line_what_is_no_manifest(copy: Callable[[str], Path], name: str) -> None:
    data, says = CONTENTS[name]
    folder = copy("dataset.json")
    content(data)(folder / "dataset.json")
    for command in ("inspect", "verify"):
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


@pytest.mark.parametrize("statistics", [{"files": 7}, {"files": {"processed": "many"}}])
def test_statistics_of_a_stranger_are_no_traceback(
    copy: Callable[[str], Path], statistics: dict[str, Any]
) -> None:
    folder = copy("dataset.json")
    sealed(set_value(*WEB, "statistics", to=statistics))(folder / "dataset.json")
    told = commands.run("inspect", folder, "--statistics", status=1).stderr
    assert told.startswith(
        "error: the statistics of train/web are not as the converter writes them ("
    )
