"""`jaxdata inspect`: what it says of batches and documents, deleted ones too, is what was read."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxdata
from jaxdata.config import build_rows, load_config
from jaxdata.dataset.deleting import delete_documents
from jaxdata.look.trace import Tracer, read_state
from jaxdata.testing import distinct_documents
from tests import builders, commands

RNG = np.random.default_rng(11)
TEXTS = {
    name: distinct_documents(RNG.integers(1, 150, count), first=1 + 20_000 * number)
    for number, (name, count) in enumerate({"web": 250, "code": 150, "wiki": 40}.items())
}


asked = partial(commands.described, "inspect")


@pytest.fixture(scope="module")
def config(module_path: Path) -> Path:
    data = builders.dataset(module_path / "d", TEXTS, shard_documents=64, record_tokens=50)
    phases = [{"rows": 300, "mix": {"web": 0.6, "code": 0.3, "wiki": 0.1}}]
    phases += [{"rows": 371, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}}]
    given = {"pack": {"seq_len": 32, "block_bytes": 5000, "overlap": 5}, "curriculum": phases}
    given |= {"epochs": {"web": 1.5, "code": 2, "wiki": 6}, "loader": {"batch_size": 24}}
    return builders.run(module_path, dataset=str(data), **given)


OWNERS = dict[int, tuple[str, int, int]]()
for name, documents in TEXTS.items():
    for number, document in enumerate(documents):
        OWNERS |= {int(token): (name, number, place) for place, token in enumerate(document)}
"""of each token id, the one place where it stands: source, document, token"""
Place = tuple[int, int, int, int]
"""(step, row of the batch, first slot, first token)"""


def emitted(batch: Any, step: int) -> Iterator[tuple[tuple[str, int], Place]]:
    """The segments of a batch, told from its tokens alone."""
    for row in range(len(batch["inputs"])):
        ids = batch["segment_ids"][row]
        for segment in range(1, int(ids.max()) + 1):
            slot = int(np.flatnonzero(ids == segment)[0])
            name, document, token = OWNERS[int(batch["inputs"][row][slot])]
            yield (name, document), (step, row, slot, token)


def told(pieces: list[Any]) -> list[Place]:
    return [(p["step"], p["row_in_batch"], p["slots"][0], p["tokens"][0]) for p in pieces]


Places = dict[tuple[str, int], list[Place]]


def test_a_batch_is_explained(config: Path) -> None:
    batches = list(jaxdata.load(config))
    for step in (0, len(batches) - 1):
        expected = list(emitted(batches[step], step))
        pieces = asked("--config", config, "--step", step)["pieces"]
        assert [(p["source"], p["document"]) for p in pieces] == [whose for whose, _ in expected]
        assert told(pieces) == [place for _, place in expected]
        for piece in pieces:
            row, (first, stop) = piece["row_in_batch"], piece["slots"]
            number, token, source = piece["document"], piece["tokens"][0], piece["source"]
            document = TEXTS[source][number]
            assert (piece["row"], piece["length"]) == (step * 24 + row, len(document))
            held = document[slice(*piece["tokens"])]
            batch = {name: array[row] for name, array in batches[step].items()}
            assert batch["inputs"][first:stop].tolist() == held[: stop - first].tolist()
            assert batch["targets"][stop - 1] == held[-1]
            assert piece["without_loss"] == int((~batch["loss_mask"][first:stop]).sum())
            before = TEXTS[source][number // 64 * 64 : number]
            record = sum(-(-len(each) // 50) for each in before) + token // 50
            shard = f"train/{source}/{number // 64:05}-00000.array_record"
            origin = piece["origin"]
            assert (origin["shard"], origin["record"], origin["line"]) == (shard, record, number)
    one = asked("--config", config, "--step", step, "--row", 7)["pieces"]
    assert one == [each for each in pieces if each["row_in_batch"] == 7]


@pytest.mark.parametrize("kind", ["crop", "repeat", "evaluation"])
def test_every_document_is_where_it_was_emitted(config: Path, kind: str) -> None:
    def opened() -> jaxdata.Loader:
        rows = build_rows(load_config(config), "train", shuffle=False)
        if kind == "crop":
            return jaxdata.load(config, pack={"strategy": kind, "overlap": 0, "multiple": 4})
        if kind == "repeat":
            documents = jaxdata.load(config).rows.sources["web"].table.documents[0]
            rows = jaxdata.pack(documents, seq_len=32, overlap=8).repeat(2)
        return jaxdata.Loader(rows, batch_size=4)

    seen: Places = defaultdict(list)
    for step, batch in enumerate(opened()):
        for (name, number), place in emitted(batch, step):
            seen[f"{'' if kind == 'crop' else 'train/'}{name}", number].append(place)
    tracer = Tracer(opened(), None)
    every = [(name, n) for name in tracer.names for n in range(len(tracer.documents(name)))]
    found = {whose: told(tracer.pieces(*whose)) for whose in every}
    assert {whose: places for whose, places in found.items() if places} == seen


def test_after_a_resume_with_skips_on_three_hosts(config: Path, tmp_path: Path) -> None:
    """The run changes its batch size and its hosts, and rows are left out on the way."""
    seen: Places = defaultdict(list)

    def record(batch: Any, step: int) -> None:
        for whose, place in emitted(batch, step):
            seen[whose].append(place)

    first = jaxdata.load(config, loader={"skip_rows": [[50, 61]]})
    for step in range(9):
        record(next(first), step)
    first.skip(230, 300)
    state = json.loads(json.dumps(first.get_state()))
    hosts = [jaxdata.load(config, shard=(host, 3), loader={"batch_size": 30}) for host in range(3)]
    for host in hosts:
        host.set_state(state)
    for step, parts in enumerate(zip(*hosts, strict=True), 9):
        record({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, step)
        if step == 13:
            saved = tmp_path / "state.json"
            saved.write_text(json.dumps(hosts[1].get_state()))
    ways = ["--config", config, "--loader.batch_size", 30, "--state", saved]
    for whose in [("web", 3), ("web", 77), ("code", 12), ("wiki", 5), ("wiki", 30)]:
        found = asked(*ways, "--document", f"{whose[0]}:{whose[1]}")["documents"][0]
        trained = [piece for piece in found["pieces"] if piece["step"] is not None]
        assert told(trained) == seen[whose]
        assert [p["trained"] for p in trained] == [p["step"] < 14 for p in trained]
    lost = {row for a, b in ((50, 61), (230, 300)) for row in range(a, b)}
    assert {p["row"] for p in found["pieces"] if p["step"] is None} <= lost
    assert asked(*ways)["step"] == 14, "the batch that comes next"
    pieces = asked(*ways, "--step", 20)["pieces"]
    owners = [(p["source"], p["document"]) for p in pieces]
    at_20 = {(whose, at) for whose, places in seen.items() for at in places if at[0] == 20}
    assert set(zip(owners, told(pieces), strict=True)) == at_20
    said = commands.run("inspect", *map(str, ways), "--document", "wiki:5").stdout
    assert "was in step" in said
    assert "will be in step" in said


def test_states_of_all_kinds(config: Path, tmp_path: Path) -> None:
    loader, states, folder = jaxdata.load(config), [], tmp_path / "run"
    with ocp.CheckpointManager((folder / "checkpoints").resolve()) as manager:
        for step in (2, 10):
            next(loader)
            states.append(json.loads(json.dumps(loader.get_state())))
            saved = ocp.args.JsonSave(loader.get_state())
            manager.save(step, args=ocp.args.Composite(loader=saved))
        manager.wait_until_finished()
    for path in (folder, folder / "checkpoints", folder / "checkpoints/10"):
        assert read_state(path) == states[1]
    assert read_state(folder / "checkpoints/2/loader") == states[0]
    (folder / "checkpoints/10/loader/metadata").write_bytes(b'{"version"')
    with pytest.raises(jaxdata.InputError, match=r"10/loader/metadata is damaged: it is no JSON"):
        read_state(folder)
    with pytest.raises(jaxdata.InputError, match=r"expected the JSON of loader\.get_state\(\)"):
        read_state(config.parent / "d")


GONE = {"code": [3], "web": [1, 5, 150, 199]}


def test_the_account_names_the_steps_whose_batches_held_deleted_documents(tmp_path: Path) -> None:
    given = {"pack": {"seq_len": 64}, "epochs": {"code": 9, "web": 9}}
    given["curriculum"] = [{"rows": 300, "mix": {"code": 0.4, "web": 0.6}}]
    given["loader"] = {"batch_size": 8, "extras": ["source", "document"]}
    path = builders.run(tmp_path, {"code": 60, "web": 200}, **given)
    loader, held = jaxdata.load(path), set[tuple[str, int, int]]()
    for step in range(25):
        batch = next(loader)
        slots = np.stack([batch["source"], batch["document"]], axis=-1).reshape(-1, 2)
        for source, document in np.unique(slots[slots[:, 0] >= 0], axis=0).tolist():
            held.add((loader.source_names[source], document, step))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(loader.get_state()))

    def account() -> list[dict[str, str]]:
        said = commands.run("trace", path, "--deleted", "--runs", state).stdout
        return [*csv.DictReader(said.splitlines())]

    assert account() == []
    delete_documents(tmp_path / "d", documents={"web": GONE["web"][:2]})
    delete_documents(tmp_path / "d", documents={"code": GONE["code"], "web": GONE["web"][2:]})
    found = account()
    steps = [(each["source"], int(each["document"]), each["step"]) for each in found]
    expected = {place for place in held if place[1] in GONE[place[0]]}
    assert {(*each[:2], int(each[2])) for each in steps if each[2]} == expected
    assert all(int(each["row"]) // 8 == int(each["step"]) for each in found if each["step"])
    assert {each["run"] for each in found if each["step"]} == {str(state)}
    untrained = {each[:2] for each in steps if not each[2]}
    assert untrained == {(s, d) for s in GONE for d in GONE[s]} - {place[:2] for place in expected}
    content = json.loads(state.read_text())
    content["run"]["data"]["web"] = "00000000"
    state.write_text(json.dumps(content))
    told = commands.run("inspect", path, "--deleted", "--runs", state, status=1).stderr
    assert "its state is of data web: 00000000, which no generation of train/web" in told
