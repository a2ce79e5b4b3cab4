"""`jaxdata selftest`, and the proofs it makes: what holds is proved, what does not is found."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata import testing
from jaxdata.config import build_rows, load, load_config
from jaxdata.rows.table import Segments
from jaxdata.testing import assert_rows_conserve, distinct_documents, prove, write_dataset
from jaxdata.testing.contents import slow_row
from jaxdata.testing.plans import assert_mixture_takes_every_row

ALL = ["plan", "mixture", "contents", "resuming", "hosts", "workers"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    documents = distinct_documents(np.random.default_rng(3).integers(1, 90, 200))
    masks = {"train/b": [np.arange(len(d)) % 3 > 0 for d in documents[120:]]}
    write_dataset(tmp_path / "d", {"train/a": documents[:120], "train/b": documents[120:]}, masks)
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""
dataset: {tmp_path / "d"}
pack: {{seq_len: 32, overlap: 8, block_bytes: 5000}}
curriculum:
  - {{rows: 60, mix: {{a: 0.8, b: 0.2}}}}
  - {{rows: 90, mix: {{a: 0.2, b: 0.8}}}}
epochs: {{a: 2, b: 2}}
loader: {{batch_size: [[0, 12], [50, 6]], skip_rows: [[7, 9], [70, 88]]}}
"""
    )
    return path


def check(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "jaxdata", "selftest", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_command_says_what_it_proved(config: Path) -> None:
    code, said = check("--config", str(config), "--steps", "9")
    lines = said.splitlines()
    assert code == 0, said
    assert [line.split()[:2] for line in lines[:6]] == [["ok", name] for name in ALL]
    assert lines[6].split()[1] == "shuffle"
    assert "an epoch of 2 sources has each of its 8,836 " in lines[0]
    assert "9 steps hold what the documents hold: " in lines[2]
    assert "restored at 10 steps: the same state" in lines[3]
    assert "2, 3 hosts make the same 9 batches as one" in lines[4]
    assert lines[-1].startswith("proved in ")
    code, said = check("--config", str(config), "--pack.seq_len", "0")
    assert (code, said.startswith("error: pack.seq_len")) == (1, True)


def test_every_strategy_is_proved(config: Path) -> None:
    for strategy in ("concat", "crop", "pad"):
        pack = {"strategy": strategy, "overlap": 0, "positions": "row"}
        settings = load_config(config, {"pack": pack, "epochs": {"a": 9, "b": 9}})

        def open_loader(shard: Any = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
            return load(settings, shard=shard, loader={"num_workers": num_workers})  # noqa: B023

        proofs = list(prove(open_loader, steps=4))
        assert [proof.name for proof in proofs if proof.holds] == ALL, proofs
        assert ("at most once (crop)" in proofs[0].says) == (strategy == "crop")
        assert_rows_conserve(build_rows(settings), epoch=1)


def test_rows_in_lanes_are_proved(config: Path) -> None:
    """Batches of which are sorted by lane."""
    lanes = {"chunk_bytes": 64, "block_bytes": 512, "lanes": 4}
    settings = load_config(
        config, {"pack": {"seq_len": 32, "overlap": 8, "block_bytes": 6553600} | lanes}
    )

    def open_loader(shard: Any = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        return load(settings, shard=shard, loader={"num_workers": num_workers})

    loader = open_loader()
    assert any((np.diff(loader.batch_rows(step)) < 0).any() for step in range(5))
    assert [proof.name for proof in prove(open_loader, steps=6) if proof.holds] == ALL


def proofs_of(config: Path, change: Any) -> dict[str, str]:
    """What is said of each promise that does not hold, where `change` is made to each loader."""

    def open_loader(shard: Any = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        loader = load(config, shard=shard, loader={"num_workers": num_workers})
        change(loader, shard, num_workers)
        return loader

    return {proof.name: proof.says for proof in prove(open_loader, steps=6) if not proof.holds}


def test_what_does_not_hold_is_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_rows_with_workers(loader: Any, _shard: Any, num_workers: int) -> None:
        if num_workers == 3:
            loader.seek(row=1)

    assert list(proofs_of(config, other_rows_with_workers)) == ["workers"]

    def the_second_host_is_ahead(loader: Any, shard: Any, _num_workers: int) -> None:
        if shard[0] == 1:
            loader.seek(step=1)

    assert list(proofs_of(config, the_second_host_is_ahead)) == ["hosts"]

    def a_state_forgets(loader: Any, *_: Any) -> None:
        monkeypatch.setattr(
            type(loader), "set_state", lambda self, state: self.seek(row=state["next_row"] // 2)
        )

    found = proofs_of(config, a_state_forgets)
    assert found == {"resuming": "step 1: the state changed in restoring it"}


def test_wrong_rows_are_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = build_rows(load_config(config))
    batch = {name: array[None].copy() for name, array in rows[5].items()}
    testing.assert_batches_hold_documents([([5], batch)], rows)
    batch["targets"][0, 3] += 1
    with pytest.raises(AssertionError, match=r"row 5: targets\[3\] is \d+, and \d+ by its doc"):
        testing.assert_batches_hold_documents([([5], batch)], rows)

    table = rows.sources["a"].table
    segments = type(table).segments

    def changed(change: Any) -> None:
        monkeypatch.setattr(
            type(table), "segments", lambda self, rows: change(segments(self, rows))
        )

    def longer(found: Segments) -> Segments:
        return replace(found, slots=found.slots + (found.start > 0))

    changed(lambda found: found.take(np.flatnonzero(found.row != 4)))
    with pytest.raises(AssertionError, match=r"train/a: \d+ targets, \d+ of them in rows, 0 drop"):
        assert_rows_conserve(rows)
    changed(lambda found: replace(found, context=np.maximum(found.context - 1, 0)))
    with pytest.raises(AssertionError, match=r"train/a: target \d+ of document \d+ comes twice"):
        assert_rows_conserve(rows, most=50)
    monkeypatch.undo()
    select = type(rows.table).select
    monkeypatch.setattr(
        type(rows.table), "select", lambda self, rows: select(self, np.maximum(rows, 3))
    )
    with pytest.raises(AssertionError, match="rows 0 to 9: not every row of a once"):
        assert_mixture_takes_every_row(rows, [0], 10)


def test_a_slow_row_is_a_row(config: Path) -> None:
    rows = build_rows(load_config(config))
    for number in range(0, len(rows), 7):
        expected = slow_row(rows.table, number)
        for name, array in rows[number].items():
            assert array.dtype == expected[name].dtype
            assert np.array_equal(array, expected[name]), (number, name)


def test_transformed_rows_cannot_be_planned(config: Path) -> None:
    with pytest.raises(TypeError, match="expected rows as pack or mix return them"):
        assert_rows_conserve(build_rows(load_config(config)).map(dict))
