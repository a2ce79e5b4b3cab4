"""Text streamed without a dataset: every token once, resumed at any step, refused by name."""

import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.converter import texts
from jaxdata.feed.state import sealed
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches
from tests.feed.test_states import VALUES
from tests.streaming.conftest import documents, stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


WAYS: list[Any] = [{"overlap": 16}, {"strategy": "concat", "multiple": 8}]
WAYS += [{"strategy": "pad", "shuffle": False}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_every_token_once_a_pass(files: list[Path], options: dict[str, Any]) -> None:
    made = list(stream(files, epochs=2, **options))
    assert_exactly_once(made, [documents(files)], epochs=2)
    assert {array.shape for batch in made for array in batch.values()} == {(4, 64)}


def test_hosts_share_the_documents_and_batch_sizes_may_change(files: list[Path]) -> None:
    parts = [list(stream(files, batch_size=6, shard=(part, 3))) for part in range(3)]
    assert {array.shape for batch in parts[0] for array in batch.values()} == {(2, 64)}
    assert_exactly_once([batch for part in parts for batch in part], [documents(files)])
    every_nth = jaxdata.ArrayDocuments([d["tokens"] for d in list(documents(files))[1::3]])
    assert_exactly_once(parts[1], [every_nth])
    one, other = stream(files, batch_size=4), stream(files, batch_size=11, prefetch=0)
    before = [next(one) for _ in range(5)]
    other.set_state(one.get_state())
    assert_exactly_once([*before, *other], [documents(files)])


OF_A_HOST = {"batch_size": 6, "shard": (1, 3), "epochs": 2}


@pytest.mark.parametrize("options", [{"strategy": "concat", "buffer": 7}, OF_A_HOST], ids=str)
def test_it_resumes_at_every_step(files: list[Path], options: dict[str, Any]) -> None:
    assert assert_resumes_everywhere(lambda: stream(files, **options), tail=3) > 10


def test_another_seed_and_epoch_is_another_order(files: list[Path]) -> None:
    def rows(**options: Any) -> list[bytes]:
        made = stream(files, strategy="pad", **options)
        return [row.tobytes() for batch in made for row in batch["inputs"] if row.any()]

    once, twice = rows(), rows(epochs=2)
    assert rows(seed=1) != once == twice[: len(once)] != twice[len(once) :]


def test_it_is_a_one_pass_iterator_onto_any_device(files: list[Path]) -> None:
    made = stream(files)
    expected = list(made)
    with pytest.raises(InputError, match=r"call reset\(\)"):
        iter(made)
    made.reset()
    assert_same_batches(expected, made)
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",)), PartitionSpec("data"))
    placed = list(stream(files, sharding=sharding))
    assert placed[0]["inputs"].sharding == sharding
    assert_same_batches(expected, placed)
    with pytest.raises(InputError, match="not both"):
        stream(files, sharding=sharding, shard=(0, 1))
    laid_out = next(stream(files, layout="maxtext"))
    assert np.array_equal(expected[0]["segment_ids"], laid_out["inputs_segmentation"])
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
    assert_exactly_once(batches, [documents(kept)])
    assert "shorter than 10 characters" in made.report()
    assert "2 longer than 500 tokens" in made.report()
    assert assert_resumes_everywhere(lambda: stream(files, **options), tail=2, steps=5) > 5


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
    assert made.report().startswith("300 documents, ")
    told = r"convert it once: jaxdata convert a\.jsonl … --output"
    with pytest.warns(UserWarning, match=told) as warned:
        jaxdata.stream_text(files, tokenizer="bytes", seq_len=8)
    assert warned[0].filename == __file__, "it names the caller's line"


def test_what_cannot_be_is_refused(files: list[Path], tmp_path: Path) -> None:
    for options, says in (
        ({"buffer": 0}, "buffer=0: expected at least 1"),
        ({"bos": True}, "has no begin-of-sequence token"),
        ({"text_key": "body"}, "has no column 'body'"),
        ({"split_ratio": "train=1"}, "split_ratio is for datasets only"),
    ):
        with pytest.raises(InputError, match=says):
            stream(files, **options)
    path = tmp_path / "three.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(InputError, match=r"nothing to train on.*3 no key 'body'; the first is.*:1"):
        list(stream(path, text_key="body", epochs=None))
    with pytest.raises(InputError, match=r"shard \(3, 4\) of 1 files \(0.0 MB\) hold nothing"):
        list(stream(path, shard=(3, 4)))


def test_a_state_of_another_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "changing.jsonl"
    path.write_text('{"text": "one"}\n')
    state = stream(path, shard=(0, 2)).get_state()
    for options, says in [
        ({"shard": (1, 2)}, r"shard\[0\] was 0, is 1"),
        ({"shard": (0, 2), "seed": 1}, "seed was 0, is 1"),
        ({"shard": (0, 2), "buffer": 51}, "buffer was 50, is 51"),
    ]:
        with pytest.raises(StateMismatch, match=says):
            stream(path, **options).set_state(state)
    path.write_text('{"text": "two"}\n')
    with pytest.raises(StateMismatch, match=r"inputs was '\w+', is"):
        stream(path, shard=(0, 2)).set_state(state)
    with pytest.raises(StateMismatch, match="inputs was"):
        stream([{"text": "one"}]).set_state(state)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for number in range(2):
        lines = (json.dumps({"text": f"{number} {k} " * (k % 9)}) for k in range(60))
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


PLACES = ["epoch", "block", "document", "row", "file", "unit", "part", "record", "line", "word"]


@settings(max_examples=30)
@given(st.sampled_from(PLACES), VALUES)
def test_a_damaged_position_is_refused_by_name_or_the_right_stream(
    two: Path, name: str, value: Any
) -> None:
    one = stream(two, seq_len=32, buffer=10, epochs=2, prefetch=0)
    list(islice(one, 7))
    state = one.get_state()
    damaged = sealed({**state, "position": {**state["position"], name: value}})
    with pytest.raises(StateMismatch, match="the loader state is damaged: its checksum is"):
        one.set_state({**damaged, "checksum": "0" * 8})
    most = 2 if name == "file" else 2**63
    if name != "word" and type(value) is int and 0 <= value < most:
        one.set_state(damaged)
        assert one.get_state() == damaged
        list(islice(one, 2))  # a position that nothing is at has an end
    else:
        with pytest.raises(StateMismatch, match=r"has position .*expected whole .* 2 files"):
            one.set_state(damaged)
    one.close()


@pytest.mark.slow
def test_workers_and_prefetch_change_nothing(files: list[Path], monkeypatch: Any) -> None:
    monkeypatch.setattr("jaxdata.streaming.api._CHUNK_DOCUMENTS", 3)
    for what, workers, prefetch in ((files, 2, 0), ([{"text": "a b"}] * 90, 1, 2)):
        expected = list(stream(what, prefetch=0, buffer=200))
        made = stream(what, num_workers=workers, prefetch=prefetch, buffer=200)
        assert_same_batches(expected, made)
        made.close()
