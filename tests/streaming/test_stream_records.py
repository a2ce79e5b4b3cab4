"""Streams of records that a program gives: any iterable, and Hugging Face's datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches
from tests.streaming.conftest import documents, stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")

CHANCE = np.random.default_rng(4)
TEXTS = ["".join(CHANCE.choice(list("abcdef \n"), n)) for n in CHANCE.integers(0, 90, 200)]
TEXTS[7], TEXTS[150] = "", "long " * 400


def dicts() -> list[dict[str, Any]]:
    return [{"text": text, "number": number} for number, text in enumerate(TEXTS)]


class Anew:
    """An iterable that begins anew every time, without length or index."""

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)


class Positioned:
    """An iterable with a state of its own, of positions; `reads` counts what it gave."""

    def __init__(self) -> None:
        self.at, self.reads = 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < len(TEXTS):
            self.at += 1
            self.reads += 1
            yield {"text": TEXTS[self.at - 1]}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "nested": [self.at, None]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["nested"] == [state["at"], None]
        self.at = state["at"]


class Lossy(Positioned):
    """A source that forgets what it had taken ahead, as a shuffle buffer does."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.at += 3 if 0 < self.at < len(TEXTS) - 3 else 0


class Unwritable(Positioned):
    """A source whose state is no JSON."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.at,), "data": b"1"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.at,) = state["at"]


SOURCES = {
    "dicts": dicts,
    "texts": Anew,
    "a generator": lambda: (text for text in TEXTS),
    "a state of its own": Positioned,
    "a state that is not exact": Lossy,
    "a state that is no JSON": Unwritable,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_token_once_a_pass_and_resumed_at_every_step(source: str) -> None:
    again = 1 if source == "a generator" else 3
    made = stream(SOURCES[source](), epochs=again)
    batches = list(made)
    assert_exactly_once(batches, [documents(TEXTS)], epochs=again)
    if again > 1:
        made.reset()
        assert_same_batches(batches, made)
    assert assert_resumes_everywhere(lambda: stream(SOURCES[source]()), tail=3) > 10


def test_records_and_files_give_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in dicts()))
    for options in ({}, {"shard": (1, 2), "epochs": 2}, {"min_chars": 20, "task": "fim", **FIM}):
        assert_same_batches(stream(path, **options), stream(dicts(), **options))


FIM = {"fim_prefix": 1, "fim_middle": 2, "fim_suffix": 3}


def test_a_source_with_a_state_is_not_read_again() -> None:
    whole = stream(Positioned(), prefetch=0)
    batches, states = [], []
    for batch in whole:
        batches.append(batch)
        states.append(json.loads(json.dumps(whole.get_state())))
    late = len(states) * 3 // 4
    source = Positioned()
    rest = stream(source, prefetch=0)
    rest.set_state(states[late])
    assert_same_batches(batches[late + 1 :], rest)
    assert 0 < source.reads < len(TEXTS) / 2


def test_a_source_that_gives_other_records_is_refused() -> None:
    made = stream(Anew())
    for _ in range(25):
        next(made)
    state = made.get_state()
    for other in (TEXTS[1:], TEXTS[::-1], TEXTS[:50]):
        resumed = stream([{"text": text} for text in other])
        resumed.set_state(state)
        with pytest.raises(StateMismatch, match=r"from record \d+ on, the source gives others"):
            next(resumed)
    list(made)
    longer = stream([*dicts(), {"text": "more"}])
    longer.set_state(made.get_state())
    with pytest.raises(StateMismatch, match="the same records in the same order"):
        next(longer)


def test_the_state_is_json_without_data() -> None:
    made = stream(Positioned(), epochs=None)
    for _ in islice(made, 150):
        pass
    state = json.dumps(made.get_state())
    assert len(state) < 1000
    assert json.loads(state)["position"]["epoch"] > 0
    assert "abc" not in state
    made.close()


def test_a_generator_is_read_once() -> None:
    with pytest.raises(InputError, match=r"a generator can be read only once: use epochs=1"):
        stream((text for text in TEXTS), epochs=None)
    endless = (text for _ in count() for text in TEXTS)
    made = stream(endless)
    assert len(list(islice(made, 900))) == 900
    made.reset()
    with pytest.raises(InputError, match=r"a generator can be read only once: .* new stream"):
        next(made)


def test_paths_are_files_however_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n')
    expected = list(stream(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in (set(tmp_path.glob("*.jsonl")), (path.name for path in tmp_path.iterdir())):
        assert_same_batches(expected, stream(given))


def test_what_records_cannot_be_is_refused() -> None:
    for given, says in [
        (7, "expected files, folders or globs; or records: an iterable of dicts or texts"),
        ({"train": dicts()}, "stream_text got a dict of 'train'; of a dict of splits give one"),
        ([3, 4], "record 0 is a int: expected a string, or a dict with the key 'text'"),
        (iter([{"text": "a"}, b"b"]), "record 1 is a bytes: expected a string, or a dict"),
        (["one text"], "strings are paths: give texts as records"),
    ]:
        with pytest.raises(InputError) as refused:
            next(stream(given))
        assert says in str(refused.value)
    with pytest.raises(
        InputError, match=r"these records hold nothing to train on: .*no key 'text'"
    ):
        next(stream([{"body": "a"}] * 9))
    with pytest.raises(InputError, match="no input files were given"):
        stream([])
    with pytest.raises(InputError, match="these records hold nothing to train on"):
        next(stream(iter([])))


def test_bad_records_are_counted_and_named() -> None:
    made = stream([*dicts(), {"text": None}, {"other": "x"}, {"text": 7}])
    with pytest.warns(UserWarning, match=r"left out: 1 'text' is null, .*first is records:200: "):
        list(made)
    assert made.report().startswith("200 documents, ")
    with pytest.warns(UserWarning, match=r"tokenizes these records again in every pass and run"):
        jaxdata.stream_text(dicts(), tokenizer="bytes", seq_len=8)


KINDS = ["shuffled", "arrow", "generator", "filtered", "map-style"]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.exhaustive] * (k != "shuffled")) for k in KINDS]
)
def test_hugging_face_resumes_exactly_though_it_was_looked_at(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    datasets.logging.set_verbosity_error()
    plain = datasets.Dataset.from_dict({"text": TEXTS})
    plain.to_parquet(tmp_path / "a.parquet", batch_size=37)

    def made() -> Any:
        arrow = plain.to_iterable_dataset(num_shards=4)
        of_file = {"data_files": str(tmp_path / "a.parquet"), "cache_dir": str(tmp_path)}
        parquet = datasets.load_dataset("parquet", split="train", streaming=True, **of_file)
        found: dict[str, Any] = {
            "arrow": arrow,
            "generator": datasets.IterableDataset.from_generator(lambda: iter(dicts())),
            "filtered": arrow.filter(lambda row: len(row["text"]) % 3 > 0),
            "shuffled": parquet.shuffle(seed=1, buffer_size=20),
            "map-style": plain,
        }
        next(iter(found[kind]))
        return found[kind]

    source = made()
    whole = stream(source, buffer=20, prefetch=0)
    before, states = [], [whole.get_state()]
    for batch in whole:
        before.append(batch)
        states.append(json.loads(json.dumps(whole.get_state())))
    assert_exactly_once(before, [documents([row["text"] for row in source])])
    for step in range(0, len(states), max(1, len(states) // 6)):
        rest = stream(made(), buffer=20)
        rest.set_state(states[step])
        assert_same_batches(before[step:], rest)
