"""Text streamed without a dataset: every token once, resumed at any step, refused by name."""

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
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.converter import texts
from jaxdata.feed.state import sealed
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches
from tests.feed.mutations import mutations, refusal
from tests.streaming.conftest import documents, stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


@pytest.mark.parametrize(
    "options",
    [
        {"overlap": 16},
        {"shuffle": False},
        {"strategy": "concat", "multiple": 8},
        {"strategy": "pad", "shuffle": False},
    ],
    ids=str,
)
def test_every_token_once_a_pass(files: list[Path], options: dict[str, Any]) -> None:
    made = list(stream(files, epochs=2, **options))
    assert_exactly_once(made, [documents(files)], epochs=2)
    assert {array.shape for batch in made for array in batch.values()} == {(4, 64)}


def test_hosts_share_the_documents(files: list[Path]) -> None:
    parts = [list(stream(files, batch_size=6, shard=(part, 3))) for part in range(3)]
    assert {array.shape for batch in parts[0] for array in batch.values()} == {(2, 64)}
    assert_exactly_once([batch for part in parts for batch in part], [documents(files)])
    every_nth = jaxdata.ArrayDocuments([d["tokens"] for d in list(documents(files))[1::3]])
    assert_exactly_once(parts[1], [every_nth])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "concat", "buffer": 7},
        {"batch_size": 6, "shard": (1, 3), "epochs": 2},
    ],
    ids=str,
)
def test_it_resumes_at_every_step(files: list[Path], options: dict[str, Any]) -> None:
    steps = assert_resumes_everywhere(lambda: stream(files, **options), tail=3)
    assert steps > 10


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
    assert digest.hexdigest()[:16] == "9b46514990c8c3f6"
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


def test_layouts_bytes_and_no_copies(files: list[Path]) -> None:
    made = stream(files)
    plain, laid_out = next(made), next(stream(files, layout="maxtext"))
    assert np.array_equal(plain["segment_ids"], laid_out["inputs_segmentation"])
    assert made.token_bytes.tolist() == [1] * 256 + [0]
    with pytest.raises(InputError, match="a TextStream is not copied or pickled"):
        copy.deepcopy(made)


def halves(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A transform: two documents of each."""
    text = record["text"]
    return [{"text": text[: len(text) // 2]}, {"text": text[len(text) // 2 :]}]


def test_the_options_of_the_converter(files: list[Path]) -> None:
    options = {"transform": halves, "min_chars": 10, "max_tokens": 500, "buffer": 7}
    made = stream(files, **options)
    batches = list(made)
    kept = [half["text"] for text in texts(files) for half in halves({"text": text})]
    kept = [text for text in kept if len(text) >= 10 and len(text.encode()) < 500]
    expected = jaxdata.ArrayDocuments([[*text.encode(), 256] for text in kept])
    assert_exactly_once(batches, [expected])
    assert "shorter than 10 characters" in made.report()
    assert "2 longer than 500 tokens" in made.report()
    assert assert_resumes_everywhere(lambda: stream(files, **options), tail=2) > 10


def test_tasks_with_masks(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"what is {n}?", "completion": f" it is {n}"} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, pairs)))
    batches = list(stream(path, task="sft"))
    trained = [i for batch in batches for i in batch["targets"][batch["loss_mask"]].tolist()]
    assert sorted(trained) == sorted(i for p in pairs for i in [*p["completion"].encode(), 256])
    with pytest.raises(InputError, match="the task 'dpo' makes several sources"):
        stream(path, task="dpo")


def test_bad_lines_are_reported_and_that_converting_pays(files: list[Path]) -> None:
    made = stream(files)
    with pytest.warns(UserWarning, match=r"left out: 1 not JSON; the first is .*a\.jsonl:102: not"):
        list(made)
    assert made.report().startswith("400 documents, ")
    assert "1 not JSON" in made.report()
    told = r"convert it once: jaxdata convert a\.jsonl … --output"
    with pytest.warns(UserWarning, match=told) as warned:
        jaxdata.stream_text(files, tokenizer="bytes", seq_len=8)
    assert warned[0].filename == __file__, "it names the caller's line"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seq_len": 0}, "seq_len=0: expected at least 1"),
        ({"strategy": "worst_fit"}, "strategy='worst_fit'"),
        ({"buffer": 0}, "buffer=0: expected 1 or more"),
        ({"shard": (2, 2)}, "shard=(2, 2): expected (i, n)"),
        ({"batch_size": 5, "shard": (0, 2)}, "cannot be divided among 2 shards"),
        ({"bos": True}, "has no begin-of-sequence token"),
        ({"layout": "square"}, "layout='square'"),
        ({"text_key": "body"}, "has no column 'body'"),
        ({"split_ratio": "train=1"}, "split_ratio is for datasets only"),
    ],
)
def test_what_cannot_be_is_refused(files: list[Path], options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        stream(files, **options)
    assert says in str(refused.value)


def test_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "three.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(InputError, match=r"nothing to train on.*3 no key 'body'; the first is.*:1"):
        list(stream(path, text_key="body", epochs=None))
    with pytest.raises(InputError, match=r"shard \(3, 4\) of 1 files \(0.0 MB\) hold nothing"):
        list(stream(path, shard=(3, 4)))


def test_a_state_of_another_stream_is_refused(files: list[Path], tmp_path: Path) -> None:
    state = stream(files, shard=(0, 2)).get_state()
    for options, says in [
        ({"shard": (1, 2)}, r"shard\[0\] was 0, is 1"),
        ({"shard": (0, 2), "seed": 1}, "seed was 0, is 1"),
        ({"shard": (0, 2), "buffer": 51}, "buffer was 50, is 51"),
    ]:
        with pytest.raises(StateMismatch, match=says):
            stream(files, **options).set_state(state)
    path = tmp_path / "changing.jsonl"
    path.write_text('{"text": "one"}\n')
    state = stream(path).get_state()
    path.write_text('{"text": "two"}\n')
    with pytest.raises(StateMismatch, match=r"inputs was '\w+', is"):
        stream(path).set_state(state)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_damaged_state_is_refused_by_name_or_the_right_stream(
    tmp_path: Path, checked: bool, count: int
) -> None:
    for number in range(2):
        lines = (json.dumps({"text": f"{number} {k} " * (k % 9)}) for k in range(60))
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    one = stream(tmp_path, seq_len=32, buffer=10, epochs=2, prefetch=0)
    list(islice(one, 7))
    state: dict[str, Any] = json.loads(json.dumps(one.get_state()))
    for wrong in ({"file": 2}, {"unit": -1}, {"row": 1.5}, {"line": "3"}, {"word": 1}):
        position = {**state["position"], **wrong}
        with pytest.raises(StateMismatch, match=r"has position .*expected whole .* 2 files"):
            one.set_state(sealed({**state, "position": position}))
    with pytest.raises(
        StateMismatch, match="has position None: expected whole numbers from 0 on as epoch, "
    ):
        one.set_state(sealed({name: state[name] for name in state if name != "position"}))
    taken = 0
    if not checked:
        del state["checksum"]
    for each in mutations(state, count, seed=count):
        if refusal(one.set_state, each) is not None:
            continue
        taken += 1
        now = one.get_state()
        assert now == sealed({**state, "next_row": each["next_row"], "position": each["position"]})
        assert now == state or "checksum" not in each
        list(islice(one, 2 if taken < 100 else 0))  # a position that nothing is at has an end
    assert 0 < taken < count / 2
