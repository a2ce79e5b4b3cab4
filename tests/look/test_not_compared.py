"""What is taken on trust when a run starts, and where it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.config import load_config, open_data
from jaxdata.look.integrity import not_compared
from tests import builders
from tests.commands import run


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """Two datasets of ours, and one of another tool."""
    lengths = [20, 40, 9] * 40
    for name in ("new", "old"):
        builders.dataset(tmp_path / name, {name: lengths}, shard_documents=50)
    source = jaxdata.ArrayDocuments(builders.documents(lengths))
    jaxdata.export(source, tmp_path / "other", format="megatron")
    sources = {name: str(tmp_path / name) for name in ("new", "old")}
    sources["other"] = f"megatron:{tmp_path / 'other'}"
    mix = {"mix": dict.fromkeys(sources, 1)}
    return {"sources": sources, "pack": {"seq_len": 32}, "curriculum": mix}


def test_what_is_not_compared_is_counted(config: dict[str, Any], tmp_path: Path) -> None:
    dataset = open_data(load_config(config))
    size = 6 * 131_072 / 1e6
    assert not_compared(dataset, ["train/new", "train/old", "train/other"]) == [
        f"not compared with their checksums: 6 shards ({size:.1f} MB) and 10 columns of the index; "
        f"to compare them: jaxdata verify {tmp_path}/new, jaxdata verify {tmp_path}/old",
        "without checksums, so damage may go unnoticed: train/other",
    ]
    assert not_compared(dataset, ["train/new"]) == [
        f"not compared with their checksums: 3 shards ({size / 2:.1f} MB) and 5 columns of the "
        f"index; to compare them: jaxdata verify {tmp_path}/new"
    ]


def test_a_preview_says_what_it_did_not_compare(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    names = ["train/new", "train/old", "train/other"]
    expected = not_compared(open_data(load_config(config)), names)
    lines = run("preview", path).stdout.splitlines()
    for said in (lines, json.loads(run("preview", path, "--json").stdout)["not_compared"]):
        assert [each for each in said if "checksums" in each and "others" not in each] == expected
