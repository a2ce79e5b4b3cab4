"""Written rows keep the order of batches: a loader over them delivers the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.foreign.row_records import verify_rows
from jaxdata.testing import assert_resumes_everywhere, assert_same_batches, distinct_documents
from tests.test_golden import FORMAT_2, PHASES

CHANCE = np.random.default_rng(4)
DOCS = {
    name: jaxdata.ArrayDocuments(
        distinct_documents(CHANCE.integers(2, 90, count).tolist(), first), name=f"train/{name}"
    )
    for name, count, first in (("web", 300, 1), ("code", 100, 10**5))
}


def mixed(lanes: int = 16) -> Any:
    pools = {"chunk_bytes": 200, "block_bytes": 800}
    rows = {
        "web": jaxdata.pack(DOCS["web"], seq_len=32, **pools, lanes=lanes),
        "code": jaxdata.pack(DOCS["code"], seq_len=32, **pools, lanes=1),
    }
    return jaxdata.mix(rows)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    jaxdata.materialize(mixed(), tmp_path / "rows", shard_rows=50, workers=1)
    return tmp_path / "rows"


def test_batches_are_those_of_the_rows(written: Path) -> None:
    rows, read = mixed(), jaxdata.open_rows(written)

    def loader(given: Any) -> jaxdata.Loader:
        return jaxdata.Loader(given, batch_size=24, shard=(1, 3), prefetch=0)

    expected, ours = list(loader(rows)), loader(rows).batch_rows(1).tolist()
    assert ours != sorted(ours)
    assert loader(read).batch_rows(1).tolist() == ours
    assert_same_batches(list(loader(read)), expected)
    assert_same_batches(list(loader(read.map(dict))), expected)
    assert_resumes_everywhere(lambda: loader(read), tail=1)
    for number in (0, 1, 49, 50, len(rows) - 1):
        assert (read[number]["inputs"] == rows[number]["inputs"]).all()


def test_some_of_the_rows_are_sorted_as_they_would_be(tmp_path: Path) -> None:
    rows = mixed()
    some: Any = {"first_row": 24, "stop_row": 80, "skip_rows": [(48, 56)]}
    jaxdata.materialize(rows, tmp_path / "rows", workers=1, **some)
    ours = jaxdata.Loader(rows, batch_size=24, skip_rows=[(0, 24), (48, 56)])
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path / "rows"), batch_size=24)
    for one, other in zip((next(ours) for _ in range(2)), read, strict=False):
        assert (one["inputs"] == other["inputs"]).all()


def test_rows_without_lanes_have_no_keys(tmp_path: Path) -> None:
    jaxdata.materialize(mixed(lanes=1), tmp_path / "rows", workers=1)
    assert not (tmp_path / "rows" / "batch_key").exists()
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path / "rows"), batch_size=24)
    assert read.batch_rows(1).tolist() == list(range(24, 48))


def test_verify_sees_damaged_keys(written: Path) -> None:
    assert verify_rows(written).whole
    chunk = written / "batch_key" / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[9] ^= 1
    chunk.write_bytes(content)
    (damage,) = verify_rows(written).damage
    assert str(damage) == "batch_key: its content differs from its checksum"


def test_rows_that_were_written_once_open(tmp_path: Path) -> None:
    """The same files are written today; `tests/data/rows-2.json` described them then."""
    shutil.copytree(FORMAT_2, tmp_path / "data")
    opened = jaxdata.open_dataset(tmp_path / "data")
    packed = {
        name: jaxdata.pack(opened.source("train", name), seq_len=64) for name in ("words", "masked")
    }
    rows = jaxdata.mix(packed, phases=PHASES, epochs={"masked": 2})
    jaxdata.materialize(rows, tmp_path / "rows", shard_rows=40, workers=1)
    described = FORMAT_2.parent / "rows-2.json"
    assert (tmp_path / "rows" / "rows.json").read_bytes() == described.read_bytes()
    assert verify_rows(tmp_path / "rows").whole
    read = jaxdata.Loader(jaxdata.open_rows(tmp_path / "rows"), batch_size=8)
    assert_same_batches(read, jaxdata.Loader(rows, batch_size=8))
