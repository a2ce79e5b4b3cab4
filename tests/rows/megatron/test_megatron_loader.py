"""A Loader of Megatron's rows: resumed, shared, on devices; its states and kept orders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import StateMismatch
from jaxdata.rows.megatron import gpt_rows as table
from jaxdata.testing import (
    assert_resumes_everywhere,
    assert_same_on_hosts,
    distinct_documents,
    write_dataset,
)
from tests.dataset.documents.test_foreign import made, only_source, write_megatron
from tests.rows.megatron.slow_megatron import texts


def blended(folder: Path, **given: Any) -> Any:
    """Of our own data, of Megatron's, and of memory."""
    if not (folder / "ours").exists():
        write_dataset(folder / "ours", {"train/web": made(1)})
        write_megatron(folder / "old", made(2), "<i4")
    ours = jaxdata.open_dataset(folder / "ours").source("train", "web")
    old = only_source(f"megatron:{folder}/old")
    datasets = [(0.5, ours), (0.3, old), (0.2, jaxdata.ArrayDocuments(made(3)))]
    return jaxdata.rows.megatron.blend(datasets, **{"size": 100, "seq_len": 16, "seed": 3, **given})


BY_EOD: dict[str, Any] = {"reset": True, "eod_mask_loss": True, "by": "eod", "eod_id": 0}


def test_a_loader_resumes_and_shares_them(tmp_path: Path) -> None:
    def loader(shard: tuple[int, int] = (0, 1)) -> jaxdata.Loader:
        return jaxdata.Loader(blended(tmp_path, **BY_EOD), batch_size=8, shard=shard)

    assert_resumes_everywhere(loader, tail=2)
    assert_same_on_hosts(loader, [2, 4])


def test_the_documents_of_slots_are_known(tmp_path: Path) -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([30] * 9))
    for settings_ in ({}, {"reset": True}, {**BY_EOD, "eod_id": 17}):
        rows = jaxdata.rows.megatron.gpt(source, seq_len=16, **settings_)
        for batch in jaxdata.Loader(rows, batch_size=4, extras=("document",)):
            filled = batch["segment_ids"] > 0
            assert ((batch["inputs"] - 1) // 30)[filled].tolist() == batch["document"][
                filled
            ].tolist()


def test_an_order_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = texts(blended(tmp_path))
    assert list((tmp_path / "ours" / "plans").glob("megatron-*.arrays"))
    assert list((tmp_path / "old.jaxdata" / "plans").glob("megatron-*.arrays"))
    monkeypatch.setattr(table, "blend_order", None)
    assert texts(blended(tmp_path)) == first


def test_a_state_of_another_order_is_refused() -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))

    def loader(**given: Any) -> jaxdata.Loader:
        rows = jaxdata.rows.megatron.gpt(source, seq_len=5, **{"num_samples": 20, **given})
        return jaxdata.Loader(rows, batch_size=2)

    state = loader().get_state()
    assert len(json.dumps(state)) < 600
    loader(num_samples=25).set_state(state)  # one epoch as before: the same order
    with pytest.raises(StateMismatch, match="epochs was 1, is 2"):
        loader(num_samples=40).set_state(state)
    with pytest.raises(StateMismatch, match="by was absent, is 'eod'"):
        loader(by="eod", eod_id=3).set_state(state)


def test_states_and_kept_orders_stay_the_same(tmp_path: Path) -> None:
    """Settings that came later are not in them."""
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    rows = jaxdata.rows.megatron.gpt(source, seq_len=5, num_samples=40, reset=True, split="8,1,1")
    assert rows.table.identity() == {
        "order": "megatron",
        "data": {"documents": "8007c5c7"},
        "seq_len": 5,
        "seed": 1234,
        "reset": True,
        "eod_mask_loss": False,
        "documents": [0, 17],
        "epochs": 2,
        "separate_last_epoch": True,
    }
    assert jaxdata.Loader(blended(tmp_path), batch_size=8).get_state()["fingerprint"] == (
        "02e43ab7bd52b053"
    )
    kept = [path.name.split(".")[0] for path in tmp_path.rglob("*.arrays")]
    assert sorted(kept) == [
        "megatron-08520e7618cc2314d686faf40c3ee767",
        "megatron-442ab5b6976611d957b8989251c100a6",
        "megatron-d7ba501805ced07358810650946c2442",
    ]
