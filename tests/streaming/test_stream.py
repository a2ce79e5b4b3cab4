"""Text streamed without a dataset: every token once, and resumed at any step."""

from __future__ import annotations

import copy
import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import InputError
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches
from tests.streaming.conftest import documents, stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")
STRATEGIES = ["best_fit", "concat", "pad"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_token_once_a_pass(files: list[Path], strategy: str, shuffle: bool) -> None:
    made = list(stream(files, strategy=strategy, shuffle=shuffle, epochs=2))
    assert_exactly_once(made, [documents(files)], epochs=2)
    assert {array.shape for batch in made for array in batch.values()} == {(4, 64)}


def test_overlap_is_without_loss(files: list[Path]) -> None:
    made = list(stream(files, overlap=16))
    assert_exactly_once(made, [documents(files)])
    filled = sum(int((batch["segment_ids"] > 0).sum()) for batch in made)
    assert filled > sum(int(batch["loss_mask"].sum()) for batch in made)


@pytest.mark.parametrize("shards", [2, 3])
def test_hosts_share_the_documents(files: list[Path], shards: int) -> None:
    parts = [list(stream(files, batch_size=6, shard=(part, shards))) for part in range(shards)]
    assert {array.shape for batch in parts[0] for array in batch.values()} == {(6 // shards, 64)}
    assert_exactly_once([batch for part in parts for batch in part], [documents(files)])
    every_nth = jaxdata.ArrayDocuments([d["tokens"] for d in list(documents(files))[1::shards]])
    assert_exactly_once(parts[1], [every_nth])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "concat", "buffer": 7},
        {"epochs": 2, "buffer": 1000, "batch_size": 30},
        {"batch_size": 6, "shard": (1, 3), "epochs": 2},
    ],
    ids=str,
)
def test_it_resumes_at_every_step(files: list[Path], options: dict[str, Any]) -> None:
    steps = assert_resumes_everywhere(lambda: stream(files, **options), tail=3)
    assert steps > 10


def test_what_remains_after_any_step_is_the_rest(files: list[Path]) -> None:
    whole = stream(files)
    before, states = [], [whole.get_state()]
    for batch in whole:
        before.append(batch)
        states.append(json.loads(json.dumps(whole.get_state())))
    for step in range(0, len(states), 9):
        rest = stream(files)
        rest.set_state(states[step])
        assert_exactly_once([*before[:step], *rest], [documents(files)])


def test_grain_saves_and_restores_it(files: list[Path], tmp_path: Path) -> None:
    one, other = stream(files), stream(files)
    for _ in range(5):
        next(one)
    with ocp.CheckpointManager(tmp_path, item_names=("text",)) as manager:
        saved = ocp.args.Composite(text=grain.checkpoint.CheckpointSave(one))
        manager.save(5, args=saved)
        manager.wait_until_finished()
        manager.restore(5, args=ocp.args.Composite(text=grain.checkpoint.CheckpointRestore(other)))
    assert_same_batches(islice(one, 3), islice(other, 3))


def test_the_batch_size_may_change(files: list[Path]) -> None:
    one = stream(files, batch_size=4)
    before = [next(one) for _ in range(5)]
    other = stream(files, batch_size=11, prefetch=0)
    other.set_state(one.get_state())
    assert_exactly_once([*before, *other], [documents(files)])


def test_the_state_is_small_and_holds_no_data(files: list[Path]) -> None:
    one = stream(files, shard=(0, 2), epochs=None)
    for _ in islice(one, 150):
        pass
    assert len(json.dumps(one.get_state())) < 1000
    assert one.get_state()["position"]["epoch"] > 0
    one.close()


def test_another_seed_and_epoch_is_another_order(files: list[Path]) -> None:
    def rows(**options: Any) -> list[bytes]:
        made = stream(files, strategy="pad", **options)
        return [row.tobytes() for batch in made for row in batch["inputs"]]

    once = rows()
    assert rows() == once
    assert rows(seed=1) != once
    assert sorted(rows(seed=1)) == sorted(once)
    twice = [row for row in rows(epochs=2) if any(row)]
    once = [row for row in once if any(row)]
    assert twice[: len(once)] == once
    assert twice[len(once) :] != once


def test_the_rows_stay_the_same_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "fixed.jsonl"
    lines = [json.dumps({"text": f"document {number} " * (number % 7)}) for number in range(90)]
    path.write_text("\n".join(lines))
    made = stream(path, buffer=20, batch_size=8)
    digest = hashlib.sha256()
    for batch in islice(made, 5):
        for name, array in batch.items():
            digest.update(name.encode() + array.tobytes())
    assert digest.hexdigest()[:16] == "28d1de29e3799e50"
    assert made.get_state()["position"] == {
        "epoch": 0,
        "block": 6,
        "file": 0,
        "unit": 0,
        "part": 0,
        "record": 58,
        "line": 0,
        "document": 58,
        "row": 5,
    }


def test_it_is_a_one_pass_iterator(files: list[Path]) -> None:
    made = stream(files)
    expected = list(made)
    with pytest.raises(InputError, match=r"call reset\(\)"):
        iter(made)
    made.reset()
    assert_same_batches(expected, made)


def test_to_devices(files: list[Path]) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    placed = list(stream(files, sharding=sharding))
    assert placed[0]["inputs"].sharding == sharding
    assert_same_batches(stream(files), placed)
    with pytest.raises(InputError, match="not both"):
        stream(files, sharding=sharding, shard=(0, 1))


def test_a_stream_is_not_copied(files: list[Path]) -> None:
    with pytest.raises(InputError, match="a TextStream is not copied or pickled"):
        copy.deepcopy(stream(files))


def test_layouts_and_bytes(files: list[Path]) -> None:
    plain, laid_out = next(stream(files)), next(stream(files, layout="maxtext"))
    assert np.array_equal(plain["segment_ids"], laid_out["inputs_segmentation"])
    assert stream(files).token_bytes.tolist() == [1] * 256 + [0]
