"""The account of deleted documents, against a search of the batches that were delivered."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

import jaxdata
from jaxdata.dataset.deleting import delete_documents
from tests.builders import run as written
from tests.commands import run

GONE = {"code": [3], "web": [1, 5, 150, 199]}
Place = tuple[str, int, int]
"""source, document, step"""


def begun(folder: Path) -> tuple[Path, Path, set[Place]]:
    """A run and its state after 25 steps, and the places of all documents in its batches."""
    path = written(
        folder,
        {"code": 60, "web": 200},
        curriculum=[{"rows": 300, "mix": {"code": 0.4, "web": 0.6}}],
        epochs={"code": 9, "web": 9},
        pack={"seq_len": 64},
        loader={"batch_size": 8, "extras": ["source", "document"]},
    )
    loader, names, places = jaxdata.load(path), ["code", "web"], set[Place]()
    for step in range(25):
        batch = next(loader)
        slots = np.stack([batch["source"], batch["document"]], axis=-1).reshape(-1, 2)
        for source, document in np.unique(slots[slots[:, 0] >= 0], axis=0).tolist():
            places.add((names[source], document, step))
    state = folder / "state.json"
    state.write_text(json.dumps(loader.get_state()))
    return path, state, places


def account(path: Path, *runs: Path) -> list[dict[str, str]]:
    given = [word for state in runs for word in ("--runs", str(state))]
    return [*csv.DictReader(run("trace", path, "--deleted", *given).stdout.splitlines())]


def test_the_account_names_the_steps_whose_batches_held_deleted_documents(tmp_path: Path) -> None:
    path, state, places = begun(tmp_path)
    assert account(path, state) == []
    delete_documents(tmp_path / "d", documents={"web": GONE["web"][:2]})
    delete_documents(tmp_path / "d", documents={"code": GONE["code"], "web": GONE["web"][2:]})
    found = account(path, state)
    steps = [(each["source"], int(each["document"]), each["step"]) for each in found]
    expected = {place for place in places if place[1] in GONE[place[0]]}
    assert {(*each[:2], int(each[2])) for each in steps if each[2]} == expected
    assert all(int(each["row"]) // 8 == int(each["step"]) for each in found if each["step"])
    assert {each["run"] for each in found if each["step"]} == {str(state)}
    untrained = {each[:2] for each in steps if not each[2]}
    assert untrained == {(s, d) for s in GONE for d in GONE[s]} - {place[:2] for place in expected}
    content = json.loads(state.read_text())
    content["run"]["data"]["web"] = "00000000"
    state.write_text(json.dumps(content))
    told = run("inspect", path, "--deleted", "--runs", state, status=1).stderr
    assert "its state is of data web: 00000000, which no generation of train/web" in told
