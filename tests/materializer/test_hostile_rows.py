"""Materialized rows that a stranger made, or that were damaged: each is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import DatasetError, JaxdataError
from jaxdata.materializer import api as driver
from jaxdata.materializer.row_manifest import RowShard, decode_receipt, encode_receipt
from jaxdata.materializer.verify_rows import verify_rows
from jaxdata.testing import distinct_documents, write_dataset
from tests.format.strangers import edit_json, little_memory, set_value
from tests.format.test_mutations import mutate

Change = Callable[[dict[str, Any]], object]


def packed(folder: Path) -> Any:
    documents = distinct_documents([20, 9, 33] * 8)
    source = write_dataset(folder / "d", {"train/web": documents}).source("train", "web")
    return jaxdata.pack(source, seq_len=16)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    jaxdata.materialize(packed(folder), folder / "rows", shard_rows=10, workers=1)
    return folder / "rows"


@pytest.fixture
def rows(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "rows")


MANIFESTS: dict[str, tuple[Change, str]] = {
    "a shard outside": (
        set_value("shards", 0, "name", to="../../x"),
        "(shards.0.name: '../../x' is not the name of a file below it): restore it from a copy",
    ),
    "an absolute shard": (
        set_value("shards", 0, "name", to="/dev/zero"),
        "(shards.0.name: '/dev/zero' is not the name of a file below it): restore it from a copy",
    ),
    "no rows a shard": (
        set_value("shard_rows", to=0),
        "(shard_rows: Input should be greater than or equal to 1, not 0): restore it from a copy",
    ),
    "rows without end": (
        set_value("rows", to=2**53),
        f"(its shards do not hold {2**53:,} rows, 10 each): restore it from a copy",
    ),
    "no shards": (set_value("shards", to=[]), " rows, 10 each): restore it from a copy"),
    "a shard of more rows": (
        set_value("shards", 1, "rows", to=11),
        " rows, 10 each): restore it from a copy",
    ),
    "arrays of objects": (
        set_value("fields", 0, 1, to="|O"),
        "or objects): restore it from a copy",
    ),
    "arrays beyond memory": (
        set_value("fields", 0, 2, to=[2**30, 2**30]),
        "): restore it from a copy",
    ),
    "arrays of nothing": (set_value("fields", to=[]), "(fields: a row of these arrays has 0 bytes"),
    "a run too deep": (
        set_value("run", "a", to=json.loads("[" * 99 + "]" * 99)),
        "(run: it is nested more than 32 deep): restore it from a copy",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_description_is_refused_before_anything_is_opened(rows: Path, name: str) -> None:
    harm, says = MANIFESTS[name]
    edit_json(rows / "rows.json", harm)
    for use in (jaxdata.open_rows, verify_rows):
        with little_memory(), pytest.raises(DatasetError) as error:
            use(rows)
        assert str(error.value).startswith(f"{rows}/rows.json is damaged (")
        assert says in str(error.value)


def test_a_description_that_differs_from_its_checksum_is_refused(rows: Path) -> None:
    file = rows / "rows.json"
    text = file.read_text()
    file.write_text(text.replace('"first_row": 0', '"first_row": 1'))
    assert file.read_text() != text
    with pytest.raises(DatasetError) as error:
        jaxdata.open_rows(rows)
    assert str(error.value) == (
        f"{file} differs from its checksum: restore it from a copy; if you edited it, remove its "
        'line "sha256"'
    )
    fields = json.loads(text)
    del fields["sha256"]  # as jaxdata wrote it before
    file.write_text(json.dumps(fields))
    assert len(jaxdata.open_rows(rows)) == fields["rows"]


def test_another_format_of_records_is_named(rows: Path) -> None:
    edit_json(rows / "rows.json", set_value("record_format", to="pickle"))
    with pytest.raises(DatasetError) as error:
        jaxdata.open_rows(rows)
    assert str(error.value) == (
        f"{rows} has records of the format 'pickle'; this jaxdata reads plain and tf_example: "
        "install the jaxdata that wrote it"
    )


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (os.mkfifo, "cannot be read: it is no plain file. Restore the file, or materialize"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: it is no plain file. Restore"),
        (Path.touch, "cannot be read: it has 0 bytes, not 131,072. Restore the file, or"),
        (Path.mkdir, "cannot be read: it is no plain file. Restore the file, or materialize"),
    ],
)
def test_a_shard_that_is_none_is_named(
    rows: Path, harm: Callable[[Path], object], says: str
) -> None:
    shard = next(rows.glob("*.array_record"))
    shard.unlink()
    harm(shard)
    with pytest.raises(DatasetError) as error:
        list(jaxdata.open_rows(rows))
    assert str(error.value).startswith(f"{rows}/{shard.name[:5]}")
    assert says in str(error.value)
    assert not verify_rows(rows).whole


@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_a_record_that_is_no_row_is_named(rows: Path, record_format: str) -> None:
    def wider(fields: dict[str, Any]) -> None:
        fields["fields"][0][2] = [17]
        fields["record_format"] = record_format

    edit_json(rows / "rows.json", wider)
    with pytest.raises(DatasetError) as error:
        jaxdata.open_rows(rows)[3]
    assert ".array_record: record 3 is no row of rows.json (" in str(error.value)
    assert str(error.value).endswith(f"; jaxdata verify {rows} names what is damaged")


def test_a_receipt_carries_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that was killed before its end; receipts of an earlier jaxdata have none."""
    rows, output = packed(tmp_path), tmp_path / "rows"
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            jaxdata.materialize(rows, output, shard_rows=10, workers=1)
    receipt = min(output.glob("work/*.receipt"))
    content = receipt.read_bytes()
    for damaged in (content.replace(b'"rows":10', b'"rows":11'), content[:-1], b"", b"{}"):
        receipt.write_bytes(damaged)
        with pytest.raises(DatasetError) as error:
            jaxdata.materialize(rows, output, shard_rows=10, workers=1)
        assert str(error.value) == (
            f"{receipt} is damaged, or of another version of jaxdata: delete it and run the same "
            "command again, which repeats that part of the work"
        )
    receipt.write_bytes(decode_receipt(content).model_dump_json().encode())
    done = jaxdata.materialize(rows, output, shard_rows=10, workers=1)
    assert verify_rows(output).whole
    assert len(jaxdata.open_rows(output)) == done.rows == len(rows)


def test_receipts_come_back() -> None:
    shard = RowShard(name="a", rows=3, trained_tokens=None, bytes=9, sha256="0" * 64)
    assert decode_receipt(encode_receipt(shard)) == shard


@settings(max_examples=60)
@given(data=st.data(), sealed=st.booleans())
def test_any_description(whole: Path, data: st.DataObject, sealed: bool) -> None:
    file = whole / "rows.json"
    content = file.read_bytes()
    expected = [row["inputs"].tolist() for row in jaxdata.open_rows(whole)]
    fields = mutate(data, json.loads(content))
    try:
        file.write_text(json.dumps(fields))
        if sealed:
            edit_json(file, lambda _: None)
        with little_memory():
            try:
                verify_rows(whole)
                found = [row.get("inputs") for row in jaxdata.open_rows(whole)]
            except JaxdataError:
                return
        assert [inputs.tolist() for inputs in found if inputs is not None] in (expected, [])
    finally:
        file.write_bytes(content)
