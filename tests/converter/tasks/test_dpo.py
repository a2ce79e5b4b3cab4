"""Preferences: one prompt on both sides, however a record writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata import tokenizers
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks import Dropped, Encoded, make_settings, make_task
from jaxdata.tokenizers import Tokenizer
from tests.converter.chat.chat import CHATML, LLAMA2, MARKED
from tests.tokenizers.test_tokenizers import open_one

BYTES = tokenizers.load("bytes")
PLAIN = {"separator": "|"}


def encode(record: dict[str, Any], tokenizer: Tokenizer = BYTES, **options: Any) -> list[Encoded]:
    task = make_task(make_settings("dpo", tokenizer, options), tokenizer)
    assert task.streams == ("chosen", "rejected")
    assert task.masked
    (document,) = task.prepare(record).documents
    (sides,) = task.encode([document])
    assert not isinstance(sides, Dropped)
    return list(sides)


def texts(sides: list[Encoded]) -> list[tuple[str, str]]:
    """(prompt, answer) of both sides; every answer ends with EOD, which has loss."""
    found = []
    for side in sides:
        assert side.mask is not None
        assert side.tokens[-1] == BYTES.eod_id
        first = int(side.mask.argmax())
        assert side.mask.tolist() == [0] * first + [1] * (len(side.mask) - first)
        found.append((BYTES.decode(side.tokens[:first]), BYTES.decode(side.tokens[first:])))
    return found


USER, GOOD, BAD = (
    {"role": role, "content": text}
    for role, text in (("user", "q"), ("assistant", "good"), ("assistant", "bad"))
)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "q", "chosen": [GOOD], "rejected": "bad"},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        },
    ],
)
def test_however_a_pair_is_written(record: dict[str, Any]) -> None:
    assert texts(encode(record, **PLAIN)) == [("q|", "good"), ("q|", "bad")]


def test_messages_are_written_so_that_roles_are_told() -> None:
    for record in (
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ):
        with pytest.raises(BadRecord, match="neither a chat template nor prefixes"):
            encode(record)
    plain = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    assert texts(encode(plain)) == [("q", "good"), ("q", "bad")]


def test_answers_inside_the_prompt_have_no_loss() -> None:
    first = {"role": "assistant", "content": "one"}
    record = {"prompt": [USER, first, USER], "chosen": GOOD, "rejected": BAD}
    (prompt, answer), (same, _) = texts(encode(record, chat_template=CHATML))
    assert answer == "good<|im_end|>\n"
    assert prompt == same
    assert prompt.endswith("one<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n")
    for side, text in zip(encode(record, chat_template=MARKED), ("good", "bad"), strict=True):
        assert BYTES.decode(side.tokens[side.mask == 1]) == f"{text}<|im_end|>"


def test_the_prompt_of_a_text_is_up_to_the_last_answer() -> None:
    dialogue = "Human: a\n\nAssistant: b\n\nHuman: c\n\nASSISTANT:"
    record = {"chosen": f"{dialogue} yes", "rejected": f"{dialogue} no"}
    assert texts(encode(record)) == [(dialogue, " yes"), (dialogue, " no")]
    with pytest.raises(BadRecord, match="no prompt, and no 'assistant:' in the chosen text"):
        encode({"chosen": "yes", "rejected": "no"})
    with pytest.raises(BadRecord, match="does not begin with the prompt of the chosen one"):
        encode({"chosen": f"{dialogue} yes", "rejected": "Human: x\n\nAssistant: no"})


def test_what_is_no_pair_is_set_aside_or_left_out() -> None:
    for record in (
        {"prompt": "q", "chosen": "", "rejected": "bad"},
        {"prompt": "q", "chosen": "good", "rejected": [USER]},
    ):
        with pytest.raises(Dropped, match="an empty answer"):
            encode(record, **PLAIN)
    other = {"role": "user", "content": "another"}
    for record, reason in (
        ({"prompt": "q", "chosen": "good"}, "no key 'rejected'"),
        ({"prompt": "q", "chosen": 1, "rejected": "bad"}, "'an answer' is not a string"),
        ({"chosen": [USER, GOOD], "rejected": [other, BAD]}, "begin with no common prompt"),
        ({"chosen": [USER, GOOD], "rejected": "bad"}, "no common prompt"),
    ):
        with pytest.raises(BadRecord, match=reason):
            encode(record, **PLAIN)


@pytest.mark.parametrize(("name", "template"), [("cl100k", CHATML), ("mistral", LLAMA2)])
def test_real_pairs_share_their_prompt(shared_data: Path, name: str, template: str) -> None:
    tokenizer = open_one(shared_data, name)
    records = json.loads((shared_data / "instruct/dpo_en_demo.json").read_text())
    task = make_task(
        make_settings("dpo", tokenizer, {"chat_template": template, "allow_special": True}),
        tokenizer,
    )
    checked = 0
    for record in records:
        try:
            (document,) = task.prepare(record).documents
        except BadRecord as bad:
            assert "Only user and assistant" in bad.reason  # noqa: PT017 - some have a system prompt
            continue
        ((chosen, rejected),) = task.encode([document])
        prompts = [side.tokens[: int(side.mask.argmax())] for side in (chosen, rejected)]
        assert np.array_equal(*prompts)
        for side, prompt, key in zip(
            (chosen, rejected), prompts, ("chosen", "rejected"), strict=True
        ):
            answer = tokenizer.decode(side.tokens)
            assert record[key]["value"].strip() in answer
            assert side.mask[len(prompt) :].all() or name == "cl100k"
        checked += 1
    assert checked > 200
