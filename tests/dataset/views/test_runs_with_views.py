"""Runs that read views: configs, states, traces, previews, and everything behind a loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, InputError, StateMismatch
from jaxdata.dataset.verify import verify
from jaxdata.testing import (
    assert_exactly_once,
    assert_same_batches,
    distinct_documents,
    write_dataset,
)
from tests import commands
from tests.dataset.trees import copy_tree
from tests.dataset.views.made import convert_records, dropping, kept, masking, write
from tests.storage.buckets.conftest import use
from tests.storage.servers import bucket_server

LENGTHS = [4 + n % 9 for n in range(80)]
COPIES = np.where(np.arange(80) % 5 == 1, 3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training sources, of which `web` has the view d1, and `wiki` none."""
    documents = distinct_documents(LENGTHS)
    sources = {"train/web": documents, "train/wiki": documents[:40], "val/web": documents[:9]}
    write_dataset(tmp_path / "d", sources, shard_documents=30)
    view = dropping(80, *range(0, 80, 4), 79, copies=COPIES, masked=masking((1, 0, 3), (6, 2, 5)))
    write(tmp_path / "d", view)
    return tmp_path / "d"


def config(folder: Path, **fields: Any) -> dict[str, Any]:
    return {
        "dataset": str(folder),
        "pack": {"seq_len": 16},
        "curriculum": {"rows": 30, "mix": {"web": 1.0}},
        "loader": {"batch_size": 3, "prefetch": 0},
        **fields,
    }


def test_a_config_names_views_for_all_some_or_one_of_several(folder: Path) -> None:
    def whole_epoch(**fields: Any) -> Any:
        return jaxdata.load(config(folder, curriculum=None, **fields))

    dataset = jaxdata.open_dataset(folder)
    loader = whole_epoch(documents={"web": "d1"})
    assert loader.get_state()["run"]["views"] == {"web": "d1"}
    assert_exactly_once(loader, [kept(folder), dataset["train/wiki"]])
    evaluated = jaxdata.load(config(folder, documents="d1"), split="val")
    assert_exactly_once(evaluated, [dataset["val/web"]])
    with pytest.raises(InputError, match=r"train/wiki has no view 'd1': it has none"):
        whole_epoch(documents="d1")
    with pytest.raises(ConfigError, match="documents names the source 'wbe'"):
        whole_epoch(documents={"wbe": "d1"})
    web = {"dataset": str(folder), "source": "web"}
    several = {"dataset": None, "sources": {"one": web | {"documents": "d1"}, "two": web}}
    assert_exactly_once(whole_epoch(**several), [kept(folder), dataset["train/web"]])
    top = whole_epoch(**several, documents="d1")
    assert top.get_state()["run"]["views"] == {"one": "d1", "two": "d1"}


def test_a_state_is_of_its_view(folder: Path) -> None:
    state = jaxdata.load(config(folder, documents="d1")).get_state()
    with pytest.raises(
        StateMismatch, match=r"views\[web\] was 'd1', is absent: read the view that"
    ):
        jaxdata.load(config(folder)).set_state(state)
    write(folder, dropping(80, 5))  # the same name, made again
    with pytest.raises(StateMismatch, match=r"data\[web\] was"):
        jaxdata.load(config(folder, documents="d1")).set_state(state)


def test_the_commands_name_views(tmp_path: Path) -> None:
    folder = convert_records(tmp_path, [{"lang": "en"}] * 30, keep=["lang"])
    write(folder, dropping(30, 3, 4, cut=masking((6, 3, 5))))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config(folder, curriculum={"rows": 20, "mix": {"web": 1.0}})))

    def run(*arguments: str | Path) -> str:
        return commands.run(*arguments, "--documents", "d1").stdout

    said = run("preview", path)
    assert "web is read through view d1, which lists 29 documents" in said
    assert "ok      views     1 list of kept documents, as written" in said
    for of in (path, folder):
        said = run("inspect", of, "--document", "train/web:3")
        assert "not trained with view d1: near" in said
    run("export", path, "--output", tmp_path / "rows")
    rows, loader = jaxdata.open_rows(tmp_path / "rows"), jaxdata.load(path, documents="d1")
    assert_same_batches([*rows], [*loader.rows])


def test_a_view_in_a_bucket_is_that_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    with bucket_server("s3") as server:
        use(server, monkeypatch)
        url = server.url("bucket/d")
        copy_tree(folder, url)
        expected = jaxdata.load(config(folder, documents="d1"))
        assert_same_batches(jaxdata.load(config(url, documents="d1")), expected)
        write(url, dropping(80, 5), "there")
        write(folder, dropping(80, 5), "there")
        assert kept(url, "there").fingerprint == kept(folder, "there").fingerprint
        assert verify(url).whole
