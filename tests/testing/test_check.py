"""`jaxdata verify CONFIG` and its proofs: what holds is proved, what does not is found."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata import testing
from jaxdata.config import build_rows, load, load_config
from jaxdata.testing import assert_rows_conserve, prove
from jaxdata.testing.proofs import assert_mixture_takes_every_row
from tests import commands
from tests.builders import dataset, documents, run

ALL = ["plan", "mixture", "contents", "resuming", "hosts", "workers", "balance"]


@pytest.fixture(scope="module")
def config(module_path: Path) -> Path:
    sources = {"a": documents(120, longest=90), "b": documents(80, longest=90, first=9_000)}
    masks = {"b": [np.arange(len(each)) % 3 > 0 for each in sources["b"]]}
    phases = [{"rows": 60, "mix": {"a": 0.8, "b": 0.2}}, {"rows": 90, "mix": {"b": 1}}]
    given = {"dataset": str(dataset(module_path / "d", sources, masks=masks)), "curriculum": phases}
    given |= {"loader": {"batch_size": [[0, 12], [50, 6]], "skip_rows": [[7, 9], [70, 88]]}}
    pack = {"seq_len": 32, "overlap": 8, "block_bytes": 5000}
    return run(module_path, **given, pack=pack, epochs={"a": 2, "b": 2})


def opener(settings: Any) -> Any:
    def open_loader(shard: Any = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        return load(settings, shard=shard, loader={"num_workers": num_workers})

    return open_loader


def test_the_command_says_what_it_proved(config: Path) -> None:
    lines = commands.run("verify", config, "--steps", "9", "--hosts", "2").stdout.splitlines()
    assert [line.split()[:2] for line in lines[:7]] == [["ok", name] for name in ALL]
    assert lines[7].startswith("ok      shuffle   train/b (best_fit, shuffled): all 1")
    assert lines[7].endswith(" are good; 144 of 145 rows, 8 in a batch over 2 hosts")
    assert "an epoch of 2 sources has each of its " in lines[0]
    assert "9 steps hold what the documents hold: " in lines[2]
    assert "restored at 10 steps: the same state" in lines[3]
    assert "2, 3 hosts make the same 9 batches as one" in lines[4]
    assert "9 steps of the same rows; attention of the slowest of 2 hosts of 6 rows is" in lines[6]
    assert lines[-1].startswith("proved in ")


def test_rows_that_are_cropped_are_proved_at_most_once(config: Path) -> None:
    pack = {"strategy": "crop", "overlap": 0, "positions": "row"}
    settings = load_config(config, {"pack": pack, "epochs": {"a": 9, "b": 9}})
    plan, mixture, contents, *_ = islice(prove(opener(settings), steps=4), 3)
    assert [plan.holds, mixture.holds, contents.holds] == [True] * 3
    assert "at most once (crop)" in plan.says
    assert_rows_conserve(build_rows(settings), epoch=1)


def test_rows_that_are_dealt_evenly_are_proved_where_they_are() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments(documents(50, longest=60)), seq_len=32)
    assert len(rows) % 8 not in (0, 7), "the last batch has padding between its rows"

    def open_loader(**given: Any) -> jaxdata.Loader:
        return jaxdata.Loader(rows, batch_size=8, balance="attention", microbatches=2, **given)

    proofs = prove(open_loader, steps=2 * len(open_loader()))
    contents = next(proof for proof in proofs if proof.name == "contents")
    assert contents.holds, contents.says


def first_fault(config: Path, change: Any) -> Any:
    """The first promise that does not hold, where `change` is made to each loader."""

    def changed(shard: Any = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        loader = opener(config)(shard, num_workers)
        change(loader, shard)
        return loader

    return next(proof for proof in prove(changed, steps=3) if not proof.holds)


def test_what_does_not_hold_is_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def the_second_host_is_ahead(loader: Any, shard: Any) -> None:
        if shard[0] == 1:
            loader.seek(step=1)

    assert first_fault(config, the_second_host_is_ahead).name == "hosts"

    def a_state_forgets(loader: Any, _shard: Any) -> None:
        monkeypatch.setattr(
            type(loader), "set_state", lambda self, state: self.seek(row=state["next_row"] // 2)
        )

    found = first_fault(config, a_state_forgets)
    assert found.name == "resuming"
    assert found.says == "step 1: the state changed in restoring it"


def test_wrong_rows_are_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = build_rows(load_config(config))
    batch = {name: array[None].copy() for name, array in rows[5].items()}
    testing.assert_batches_hold_documents([([5], batch)], rows)
    batch["targets"][0, 3] += 1
    with pytest.raises(AssertionError, match=r"row 5: targets\[3\] is \d+, and \d+ by its doc"):
        testing.assert_batches_hold_documents([([5], batch)], rows)

    table = type(rows.sources["a"].table)
    segments = table.segments

    def changed(change: Any) -> None:
        monkeypatch.setattr(table, "segments", lambda self, rows: change(segments(self, rows)))

    changed(lambda found: found.take(np.flatnonzero(found.row != 4)))
    with pytest.raises(AssertionError, match=r"train/a: \d+ targets, \d+ of them in rows, 0 drop"):
        assert_rows_conserve(rows)
    changed(lambda found: replace(found, context=np.maximum(found.context - 1, 0)))
    with pytest.raises(AssertionError, match=r"train/a: target \d+ of document \d+ comes twice"):
        assert_rows_conserve(rows, most=50)
    monkeypatch.undo()
    mixed = type(rows.table)
    select = mixed.select
    monkeypatch.setattr(mixed, "select", lambda self, rows: select(self, np.maximum(rows, 3)))
    with pytest.raises(AssertionError, match="rows 0 to 9: not every row of a once"):
        assert_mixture_takes_every_row(rows, [0], 10)
