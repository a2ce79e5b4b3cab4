"""Layouts named in a config: with options, of one's own; and rows that a layout is not for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.config import load, load_config
from jaxdata.errors import ConfigError, InputError
from jaxdata.feed.layouts import LAYOUTS, HuggingFace, Megatron, layout
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset

MODULE = """
import functools
def tokens(batch): return batch["inputs"], batch["targets"]
def scaled(batch, *, by): return {"inputs": batch["inputs"] * by}
class Kept:
    def __init__(self, *names): self.names = names or ("inputs",)
    def __call__(self, batch): return {name: batch[name] for name in self.names}
number = 3
"""
ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([9, 5, 20])), seq_len=8)
SIDES = [
    jaxdata.ArrayDocuments([[5, 6, *answer, 0], [7, 8, 0]], [[0, 0, *answer, 1], [0, 1, 1]])
    for answer in ([1, 1, 1], [1])
]
PAIRS = jaxdata.pairs(*SIDES, seq_len=6, shuffle=False)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([30, 20, 9])})
    (tmp_path / "my_layouts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text(f"dataset: {tmp_path / 'd'}\npack: {{seq_len: 8}}\nloader: {{batch_size: 2}}\n")
    return path


def with_layout(config: Path, yaml: str) -> Path:
    config.write_text(config.read_text().replace("batch_size: 2", f"batch_size: 2, layout: {yaml}"))
    return config


@pytest.mark.parametrize(
    ("yaml", "given"),
    [
        ("{megatron: {cu_seqlens: true}}", Megatron(cu_seqlens=True)),
        ("{megatron: {attention_mask: false}}", Megatron(attention_mask=False)),
        ("{hf: {attention_mask: true}}", HuggingFace(attention_mask=True)),
        ("{hf: }", "hf"),
        ("my_layouts:tokens", lambda batch: (batch["inputs"], batch["targets"])),
        ("{'my_layouts:scaled': {by: 3}}", lambda batch: {"inputs": batch["inputs"] * 3}),
        ("my_layouts:Kept", lambda batch: {"inputs": batch["inputs"]}),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_config_names_any_layout(config: Path, yaml: str, given: Any, workers: int) -> None:
    made = load(with_layout(config, yaml), **{"loader.num_workers": workers})
    rows = load(config, **{"loader.layout": "jaxdata"}).rows
    want = jaxdata.Loader(rows, batch_size=2, layout=given)
    assert_same_batches(made, want)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("t5", r"loader\.layout: should be 'hf', 'jaxdata', 'maxtext' or 'megatron', got 't5' \("),
        ("{megatron: {cu_seqlen: true}}", "options are attention_mask, cu_seqlens; expected"),
        ("{megatron: {cu_seqlens: 3}}", "cu_seqlens is 3, expected true or false"),
        ("{maxtext: {cu_seqlens: true}}", "it has no options"),
        ("{hf: [attention_mask]}", "options are attention_mask, cu_seqlens; expected {name: {opt"),
        ("{hf: {}, megatron: {}}", "expected one of 'jaxdata', 'maxtext', 'hf', 'megatron', 'modu"),
        ("'os; rm:x'", "expected one of 'jaxdata'"),
        ("7", "expected one of 'jaxdata'"),
    ],
)
def test_a_config_that_names_none_is_refused(config: Path, yaml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(with_layout(config, yaml))
    assert "c.yaml, line 3" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my_layout:tokens",
            r"No module named 'my_layout'. Set PYTHONPATH to the folder that",
        ),
        ("my_layouts:token", "my_layouts has no 'token'"),
        ("my_layouts:number", "'my_layouts:number' is 3: expected module:function"),
        ({"my_layouts:Kept": {"of": 3}}, "unexpected keyword argument 'of'"),
    ],
)
def test_a_module_that_lacks_it_is_refused(config: Path, name: Any, message: str) -> None:
    assert load_config(config, {"loader.layout": name}), "nothing is imported to read a config"
    with pytest.raises(InputError, match=message):
        load(config, **{"loader.layout": name})


def test_preference_pairs_become_what_trl_makes_of_them() -> None:
    batch = next(jaxdata.Loader(PAIRS, batch_size=2, layout="hf"))
    assert {name: array.dtype.name for name, array in batch.items()} == dict.fromkeys(
        batch, "int64"
    )
    assert batch["input_ids"].tolist() == [
        [5, 6, 1, 1, 1, 0, 0],
        [7, 8, 0, 0, 0, 0, 0],
        [5, 6, 1, 0, 0, 0, 0],
        [7, 8, 0, 0, 0, 0, 0],
    ]
    assert batch["attention_mask"].sum(axis=1).tolist() == [6, 3, 4, 3]
    assert batch["completion_mask"].tolist() == [
        [0, 0, 1, 1, 1, 1, 0],
        [0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("name", ["maxtext", "megatron"])
def test_layouts_of_packed_rows_refuse_pairs_in_words(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' takes packed rows, and these are pref"):
        next(jaxdata.Loader(PAIRS, batch_size=2, layout=name))


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"jaxdata"}))
def test_rows_that_lack_arrays_are_refused_by_their_names(name: str) -> None:
    rows = ROWS.map(lambda row: {"inputs": row["inputs"], "targets": row["targets"]})
    with pytest.raises(InputError, match="rows here lack loss_mask, positions, segment_ids: keep"):
        next(jaxdata.Loader(rows, batch_size=2, layout=name))


def test_written_rows_have_no_masks_nobody_asked_for(tmp_path: Path) -> None:
    def fields(name: str, **options: Any) -> set[str]:
        given = {name: options} if options else name
        jaxdata.materialize(ROWS, tmp_path / f"{given}", layout=given, workers=1)
        return set(jaxdata.open_rows(tmp_path / f"{given}")[0])

    plain = {"tokens", "labels", "loss_mask", "position_ids"}
    assert fields("megatron") == plain
    assert fields("megatron", attention_mask=True) == plain | {"attention_mask"}
    assert fields("hf") == {"input_ids", "labels", "shift_labels", "position_ids"}
    with pytest.raises(InputError, match="of one row it makes 'input_ids' of shape"):
        jaxdata.materialize(PAIRS, tmp_path / "p", layout="hf", workers=1)
    with pytest.raises(InputError, match="of one row it makes tuple, expected a dict of arrays"):
        jaxdata.materialize(ROWS, tmp_path / "t", layout=lambda b: (b["inputs"],), workers=1)


def test_a_config_makes_a_loader_reiterable(config: Path) -> None:
    assert load(config).reiterable is False
    one = load(config, **{"loader.reiterable": True})
    assert [len(list(one)) for _ in range(2)] == [len(one)] * 2


def test_python_takes_the_same_names() -> None:
    assert layout({"hf": {"cu_seqlens": True}}) == HuggingFace(cu_seqlens=True)
    made = next(jaxdata.Loader(ROWS, batch_size=1, layout={"megatron": {"cu_seqlens": True}}))
    assert "attention_mask" not in made
    assert np.array_equal(made["cu_seqlens"][0, -1:], [8])
