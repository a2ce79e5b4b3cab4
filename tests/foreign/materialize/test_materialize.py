"""Rows written down: what is read back is what the Loader delivers."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.cli import export as command
from jaxdata.foreign.record_formats import RECORD_FORMATS
from jaxdata.foreign.row_records import verify_rows
from jaxdata.testing import assert_same_batches, distinct_documents
from tests import commands
from tests.foreign.materialize.conftest import assert_same_rows, loaded, records, run


def test_three_lines_of_numpy_read_what_the_loader_delivers(config: str, tmp_path: Path) -> None:
    run("--config", config, "--output", str(tmp_path / "rows"), "--shard-rows", "30")
    fields = json.loads((tmp_path / "rows/rows.json").read_text())["fields"]
    dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields])
    rows = [np.frombuffer(record, dtype)[0] for record in records(tmp_path / "rows")]
    expected = loaded(config)
    assert_same_rows([{name: row[name] for name in dtype.names} for row in rows], expected)
    # Nothing else lies in a record, and the order of the arrays is that of the batch.
    assert all(
        record == b"".join(array.tobytes() for array in row.values())
        for record, row in zip(records(tmp_path / "rows"), expected, strict=True)
    )


@pytest.mark.parametrize("layout", ["maxtext", "hf", "megatron"])
def test_every_layout_is_written_as_the_loader_lays_it_out(
    config: str, tmp_path: Path, layout: str
) -> None:
    for record_format in ("rows", "tf_example"):
        output = tmp_path / record_format
        options = ["--output", str(output), "--layout", layout, "--format", record_format]
        run("--config", config, "--rows", ":9", *options)
        expected = loaded(config, loader={"layout": layout})[:9]
        assert_same_rows(list(jaxdata.open_rows(output)), expected)


@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_extras_are_written_where_they_are_asked_for(tmp_path: Path, record_format: str) -> None:
    tokens = distinct_documents([5, 9, 12, 3] * 9)
    for kind in (np.float32, np.float64):
        side = {"weight": [document.astype(kind) / 4 for document in tokens]}
        rows = jaxdata.pack(jaxdata.ArrayDocuments(tokens, side=side), seq_len=8)
        options = {"extras": ("document", "weight"), "record_format": record_format}
        output = tmp_path / np.dtype(kind).name
        if kind is np.float64 and record_format == "tf_example":
            with pytest.raises(InputError, match="'weight' is float64: use record_format='plain'"):
                jaxdata.materialize(rows, output, workers=1, **options)
            continue
        jaxdata.materialize(rows, output, shard_rows=10, workers=1, **options)
        whole: dict[str, Any] = {"batch_size": 4, "drop_remainder": True}
        read = jaxdata.Loader(jaxdata.open_rows(output), **whole)
        expected = jaxdata.Loader(rows, extras=("document", "weight"), **whole)
        assert assert_same_batches(read, expected) > 5


def test_a_state_knows_which_rows_it_is_of(config: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        rows = jaxdata.load(config, seed=seed).rows
        done = jaxdata.materialize(rows, tmp_path / str(seed), workers=1)
        assert done.trained_tokens == sum(int(row["loss_mask"].sum()) for row in rows)
    loaders = [jaxdata.Loader(jaxdata.open_rows(tmp_path / str(k)), batch_size=8) for k in (0, 1)]
    with pytest.raises(StateMismatch, match="data was"):
        loaders[1].set_state(loaders[0].get_state())


def test_dataset_order_ranges_and_other_splits(config: str, tmp_path: Path) -> None:
    run("--config", config, "--output", str(tmp_path / "val"), "--split", "val")
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "val")), loaded(config, "val"))
    run("--config", config, "--output", str(tmp_path / "flat"), "--no-shuffle")
    flat = list(jaxdata.open_rows(tmp_path / "flat"))
    first = [row["inputs"][0] for row in flat]
    documents = jaxdata.open_dataset(Path(config).parent / "d").source("train", "code")
    assert first[0] == next(d["tokens"][0] for d in documents if len(d["tokens"]) > 1)
    run("--config", config, "--output", str(tmp_path / "part"), "--rows", "10:25")
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "part")), loaded(config)[10:25])
    skipped = ["--rows", "10:25", "--loader.skip_rows", "[[0, 3], [12, 20]]"]
    run("--config", config, "--output", str(tmp_path / "skip"), *skipped)
    kept = [*loaded(config)[10:12], *loaded(config)[20:25]]
    assert_same_rows(list(jaxdata.open_rows(tmp_path / "skip")), kept)


def test_rows_of_a_function_are_written_as_it_makes_them(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows.map(lambda row: {"twice": row["inputs"].astype(np.int64) * 2})
    done = jaxdata.materialize(rows, tmp_path, workers=1)
    assert done.trained_tokens is None
    assert_same_rows(
        list(jaxdata.open_rows(tmp_path)),
        [{"twice": row["inputs"].astype(np.int64) * 2} for row in loaded(config)],
    )


def test_what_cannot_be_is_refused(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    output = str(tmp_path / "out")
    for options, says in [
        ({"layout": "square"}, "layout='square': expected one of 'jaxdata', 'maxtext'"),
        ({"record_format": "csv"}, "record_format='csv': expected plain | tf_example"),
        ({"workers": 0}, "workers=0: expected 1 or more"),
        ({"first_row": 9, "stop_row": 9}, "rows 9:9: expected a range"),
        ({"stop_row": len(rows) + 1}, f"stop <= {len(rows)}"),
        ({"stop_row": 2, "skip_rows": [(0, 2)]}, "nothing is left to write"),
    ]:
        with pytest.raises(InputError) as refused:
            jaxdata.materialize(rows, output, **options)  # type: ignore[arg-type]
        assert says in str(refused.value)
    with pytest.raises(InputError, match="is a dataset of documents"):
        jaxdata.materialize(rows, Path(config).parent / "d")
    with pytest.raises(DatasetError, match="holds no finished rows"):
        jaxdata.open_rows(output)
    wrong = ["export", "--config", config, "--output", output, "--rows", "5"]
    assert "expected rows like 0:1000" in commands.run(*wrong, status=2).stderr


def verified(folder: Path, status: int) -> str:
    return commands.run("verify", folder, status=status).stdout


def test_a_damaged_set_says_so(config: str, tmp_path: Path) -> None:
    done = jaxdata.materialize(jaxdata.load(config).rows, tmp_path, shard_rows=50, workers=1)
    whole = f"{tmp_path}: whole ({len(done.shards)} files, {done.rows} rows, "
    assert verified(tmp_path, 0).startswith(whole)
    (tmp_path / done.shards[1].name).write_bytes(b"nothing")
    (tmp_path / done.shards[0].name).rename(tmp_path / "elsewhere")
    assert re.match(
        r"DAMAGED 00000-of-\d+.array_record: .* is missing: .*\n"
        r"DAMAGED 00001-of-\d+.array_record: it has 7 bytes, not [\d,]+\n"
        r"restore these files from a copy, or materialize the rows again\n",
        verified(tmp_path, 1),
    )
    (tmp_path / "elsewhere").rename(tmp_path / done.shards[0].name)
    rows = jaxdata.open_rows(tmp_path)
    assert rows[0]["inputs"].shape == (64,)
    with pytest.raises(DatasetError, match="cannot be read"):
        rows[50]


def test_a_damaged_description_says_so(config: str, tmp_path: Path) -> None:
    jaxdata.materialize(jaxdata.load(config).rows, tmp_path, workers=1)
    file = tmp_path / "rows.json"
    text = file.read_text()
    file.write_text(text.replace('"stop_row": 202', '"stop_row": 203'))
    for use in (jaxdata.open_rows, verify_rows):
        with pytest.raises(DatasetError, match=r"rows\.json differs from its checksum: restore it"):
            use(tmp_path)
    file.write_text(re.sub(r'\n "sha256": "\w+",', "", text))
    with pytest.raises(DatasetError, match=r"rows\.json differs from its checksum: restore it"):
        jaxdata.open_rows(tmp_path)
    file.write_text("{")
    with pytest.raises(DatasetError, match=r"rows\.json is damaged"):
        jaxdata.open_rows(tmp_path)


def test_a_record_format_is_one_entry_in_the_registry(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORD_FORMATS, "toy", RECORD_FORMATS["plain"])
    importlib.reload(command)  # its choices are made when it is imported
    options = ["--output", str(tmp_path), "--format", "toy", "--workers", "1"]
    run("--config", config, "--rows", ":9", *options)
    assert_same_rows(list(jaxdata.open_rows(tmp_path)), loaded(config)[:9])
    monkeypatch.undo()
    importlib.reload(command)
