"""Configs that name data of other tools, alone or beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.config import build_rows, load, load_config, open_data
from jaxdata.errors import ConfigError, InputError
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, write_dataset
from tests.documents.test_foreign import made, write_megatron, write_nanogpt

CONFIG = """
sources:
  web: {ours}
  old: megatron:{folder}/old
  books: {{dataset: {ours}, source: books}}
  flat: {{dataset: nanogpt:{folder}/flat.bin, eod_id: 0}}
pack: {{seq_len: 32}}
curriculum:
  - {{rows: 12, mix: {{web: .4, old: .3, books: .2, flat: .1}}}}
loader: {{batch_size: 4}}
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    ours = {"train/web": made(1), "train/books": made(2), "val/web": made(3, 9)}
    write_dataset(tmp_path / "ours", ours)
    write_megatron(tmp_path / "old", made(4), "<i4")
    write_nanogpt(tmp_path / "flat.bin", made(5))
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(ours=tmp_path / "ours", folder=tmp_path))
    return path


def test_a_config_mixes_them_with_ours(mixed: Path) -> None:
    rows = build_rows(load_config(mixed))
    assert set(rows.sources) == {"web", "old", "books", "flat"}
    assert all(rows.counts().values())
    assert_resumes_everywhere(lambda: load(mixed, shard=(0, 1)))
    expected = made(3, 9)
    evaluated = load(mixed, split="val", shard=(0, 1), eval_batch_size=1)
    assert_exactly_once(evaluated, [jaxdata.ArrayDocuments(expected)])
    assert open_data(load_config(mixed)).splits == {
        "train": ["books", "flat", "old", "web"],
        "val": ["web"],
    }


def test_other_tools_data_is_a_config_s_only_dataset(tmp_path: Path) -> None:
    spec = write_megatron(tmp_path / "old", made())
    loader = load({"dataset": spec, "pack": {"seq_len": 32}}, shard=(0, 1))
    assert_exactly_once(loader, [jaxdata.ArrayDocuments(made())])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dataset": "d"}, "dataset and sources exclude each other: keep one"),
        ({"sources": {}}, "sources: should have at least 1 item|at least 1"),
        ({"sources.web": 3}, "sources.web: expected a section with fields, got 3"),
        ({"sources": {"web": {"datset": "d"}}}, "'sources.web.datset'; did you mean 'dataset'"),
        ({"sources": {"web": {"source": "d"}}}, "sources.web.dataset is missing"),
    ],
)
def test_configs_that_name_data_wrongly(mixed: Path, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_config(mixed, change)


def test_a_source_that_is_not_there(mixed: Path) -> None:
    ours = mixed.parent / "ours"
    with pytest.raises(InputError, match=r"ours has no source 'old', only books, web; choose one"):
        load(mixed, sources={"old": str(ours)})
    with pytest.raises(InputError, match=r"ours has no source 'bokks', only books, web"):
        load(mixed, sources={"old": {"dataset": str(ours), "source": "bokks"}})
    with pytest.raises(
        ConfigError, match=r"names the source 'web'; split 'train' of .*/old has 'a"
    ):
        load(mixed, sources={"a": f"megatron:{mixed.parent}/old"})


def test_a_tokenizer_is_for_data_that_brings_none(mixed: Path) -> None:
    ours = str(mixed.parent / "ours")
    with pytest.raises(
        ConfigError, match=r"tokenizer='bytes' is for other tools' data; .*ours has its own"
    ):
        open_data(load_config({"dataset": ours, "tokenizer": "bytes"}))
    flat = {"dataset": f"nanogpt:{mixed.parent}/flat.bin", "eod_id": 0}
    opened = open_data(load_config({"sources": {"flat": flat}, "tokenizer": "bytes"}))
    assert opened.decode([104, 105]) == "hi"
    assert opened.eod_id == 0
    with pytest.raises(InputError, match="none of flat names its tokenizer; set it"):
        open_data(load_config({"sources": {"flat": flat}})).decode([1])


def test_ours_of_different_tokenizers_are_not_joined(tmp_path: Path) -> None:
    write_dataset(tmp_path / "one", {"train/web": [[1, 0]]})
    write_dataset(tmp_path / "other", {"train/web": [[7, 0]]})  # a larger vocabulary
    sources = {"a": str(tmp_path / "one"), "b": str(tmp_path / "other")}
    with pytest.raises(InputError, match="'a' and 'b' were made with different tokenizers"):
        open_data(load_config({"sources": sources}))
