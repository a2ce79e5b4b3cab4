"""Options of a stream of text are the converter's; what it leaves out and refuses is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.converter import texts
from jaxdata.errors import InputError, StateMismatch
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere
from tests.streaming.conftest import stream

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


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
    with pytest.raises(InputError, match="split_ratio is for datasets only"):
        stream(files, split_ratio="train=1")


def test_tasks_with_masks(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"what is {n}?", "completion": f" it is {n}"} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, pairs)))
    batches = list(stream(path, task="sft"))
    answers = sum(len(pair["completion"]) + 1 for pair in pairs)
    assert sum(int(batch["loss_mask"].sum()) for batch in batches) == answers
    learnt = b"".join(
        bytes(row[mask & (row < 256)].astype(np.uint8))
        for batch in batches
        for row, mask in zip(batch["targets"], batch["loss_mask"], strict=True)
    )
    assert b"what" not in learnt
    assert learnt.count(b"it is") == 30
    with pytest.raises(InputError, match="the task 'dpo' makes several sources"):
        stream(path, task="dpo")


def test_bad_lines_are_counted_and_reported(files: list[Path]) -> None:
    made = stream(files)
    with pytest.warns(UserWarning, match=r"left out: 1 not JSON; the first is .*a\.jsonl:102: not"):
        list(made)
    assert made.report().startswith("400 documents, ")
    assert "1 not JSON" in made.report()


def test_it_says_when_converting_pays(files: list[Path]) -> None:
    told = r"convert it once: jaxdata convert a\.jsonl … --output"
    with pytest.warns(UserWarning, match=told) as warned:
        jaxdata.stream_text(files, tokenizer="bytes", seq_len=8)
    assert warned[0].filename == __file__, "it names the caller's line"


def test_what_cannot_be_is_refused(files: list[Path], tmp_path: Path) -> None:
    for options, says in [
        ({"seq_len": 0}, "seq_len=0: expected at least 1"),
        ({"strategy": "worst_fit"}, "strategy='worst_fit'"),
        ({"buffer": 0}, "buffer=0: expected 1 or more"),
        ({"shard": (2, 2)}, r"shard=(2, 2): expected (i, n)"),
        ({"batch_size": 5, "shard": (0, 2)}, "cannot be divided among 2 shards"),
        ({"bos": True}, "has no begin-of-sequence token"),
        ({"layout": "square"}, "layout='square'"),
        ({"text_key": "body"}, "has no column 'body'"),
    ]:
        with pytest.raises(InputError) as refused:
            stream(files, **options)
        assert says in str(refused.value)
    path = tmp_path / "three.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(InputError, match=r"nothing to train on.*3 no key 'body'; the first is.*:1"):
        list(stream(path, text_key="body", epochs=None))
    with pytest.raises(InputError, match=r"shard \(3, 4\) of 1 files hold nothing"):
        list(stream(path, shard=(3, 4)))


def test_a_state_of_another_stream_is_refused(files: list[Path], tmp_path: Path) -> None:
    state = stream(files, shard=(0, 2)).get_state()
    for options, says in [
        ({"shard": (1, 2)}, r"shard\[0\] was 0, is 1"),
        ({"shard": (0, 2), "seed": 1}, "seed was 0, is 1"),
        ({"shard": (0, 2), "seq_len": 65}, "seq_len was 64, is 65"),
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
