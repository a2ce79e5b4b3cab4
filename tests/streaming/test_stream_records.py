"""Streams of records that a program gives: any iterable, and Hugging Face's datasets."""

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches
from tests.streaming.conftest import TEXTS, documents, stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


def dicts() -> list[dict[str, Any]]:
    return [{"text": text, "number": number} for number, text in enumerate(TEXTS)]


class Anew:
    """An iterable that begins anew every time, without length or index."""

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)


SOURCES = {"dicts": dicts, "texts": Anew, "a generator": lambda: (text for text in TEXTS)}


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


def test_a_generator_is_read_once() -> None:
    with pytest.raises(InputError, match=r"a generator can be read only once: use epochs=1"):
        stream((text for text in TEXTS), epochs=None)
    made = stream(text for _ in count() for text in TEXTS)
    assert len(list(islice(made, 900))) == 900
    made.reset()
    with pytest.raises(InputError, match=r"a generator can be read only once: .* new stream"):
        next(made)


def test_what_records_cannot_be_is_refused() -> None:
    for given, says in [
        (iter([{"text": "a"}, b"b"]), "record 1 is a bytes: expected a string, or a dict"),
        ([{"body": "a"}] * 9, "these records hold nothing to train on: 0 documents, 0 tokens; lef"),
        (iter([]), "these records hold nothing to train on"),
        ([], "no input files were given"),
    ]:
        with pytest.raises(InputError) as refused:
            next(stream(given))
        assert says in str(refused.value)


def test_bad_records_are_counted_and_named() -> None:
    made = stream([*dicts(), {"text": None}, {"other": "x"}, {"text": 7}])
    with pytest.warns(UserWarning, match=r"left out: 1 'text' is null, .*first is records:300: "):
        list(made)
    assert made.report().startswith("300 documents, ")
    with pytest.warns(UserWarning, match=r"tokenizes these records again in every pass and run"):
        jaxdata.stream_text(dicts(), tokenizer="bytes", seq_len=8)


@pytest.mark.exhaustive
def test_hugging_face_resumes_exactly_though_it_was_looked_at(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    datasets.logging.set_verbosity_error()
    datasets.Dataset.from_dict({"text": TEXTS}).to_parquet(tmp_path / "a.parquet", batch_size=37)

    def made() -> Any:
        of_file = {"data_files": str(tmp_path / "a.parquet"), "cache_dir": str(tmp_path)}
        parquet = datasets.load_dataset("parquet", split="train", streaming=True, **of_file)
        found = parquet.shuffle(seed=1, buffer_size=20)
        next(iter(found))
        return found

    assert_exactly_once(list(stream(made(), buffer=20)), [documents(TEXTS)])
    assert assert_resumes_everywhere(lambda: stream(made(), buffer=20), tail=2, steps=6) > 5
