"""What every task keeps to, what its settings are where nobody gives them, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from jaxdata.base.errors import InputError
from jaxdata.base.settings import told
from jaxdata.converter.chat import formatting as conversation_turns
from jaxdata.converter.tasks.base import Encoded, Settings, Task, Unencodable, token_dtype
from jaxdata.converter.tasks.registry import (
    TaskSettings,
    check_takes,
    defaults,
    make_settings,
    task_names,
    task_options,
)
from tests.converter.tasks.telling import FAILS, TELLING, task_of

TURNS = {
    "separator": "", "prompt_prefix": "", "completion_prefix": "", "eod_after_prompt": False,
    "chat_template": None, "template_variables": {}, "allow_special": False,
}  # fmt: skip
TEXTS = {"text_key": "text", "text_joiner": "\n\n", "seed": 0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "lm": TEXTS | {"short_rate": 0.0, "short_length": 2_048},
    "dpo": TURNS | {
        "train_on": "last", "prompt_key": "prompt", "chosen_key": "chosen",
        "rejected_key": "rejected",
    },
    "fim": TEXTS | {
        "fim_rate": 0.9, "spm_rate": 0.5, "fim_context": 2_048,
        "fim_prefix": None, "fim_middle": None, "fim_suffix": None,
    },
    "ids": {
        "ids_key": "input_ids", "mask_key": None, "labels_key": None, "ids_end": "add",
        "keep_per_token": [],
    },
    "sft": TURNS | {
        "train_on": "all", "prompt_key": [], "completion_key": "", "messages_key": "",
        "content_key": "", "pairs": "documents", "truncate_to": None,
        "truncate_prompts": "keep_end", "least_turn": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_tasks_are_at_their_defaults_where_nothing_is_given(name: str) -> None:
    assert [*task_names()] == [*DEFAULTS], "the default first"
    assert defaults(name) == {"name": name, "bos": False} | DEFAULTS[name]
    assert {*task_options(name)} == {*DEFAULTS[name], "bos"}
    assert {*task_options()} == {"bos"}.union(*DEFAULTS.values())


def test_marks_between_texts_are_taken_with_new_lines() -> None:
    escaped = {name for name, one in task_options().items() if told(one.field, "escapes")}
    assert escaped == {"text_joiner", "separator", "prompt_prefix", "completion_prefix"}


@pytest.mark.parametrize(
    ("task", "name", "edge", "wrong"),
    [
        ("lm", "short_rate", 0.0, -0.01),
        ("lm", "short_rate", 1.0, 1.01),
        ("lm", "short_length", 3, 2),
        ("sft", "truncate_to", 2, 1),
        ("sft", "least_turn", 1, 0),
    ],
)
def test_settings_are_refused_beyond_their_edges(
    task: str, name: str, edge: float, wrong: float
) -> None:
    assert getattr(make_settings(task, TELLING, {name: edge}), name) == edge
    with pytest.raises(InputError, match=rf"^task '{task}': {name}={wrong}: expected at"):
        make_settings(task, TELLING, {name: wrong, "nope": "is told of later"})


def test_settings_are_of_the_task_that_they_name_or_wrong() -> None:
    adapter = TypeAdapter(TaskSettings)
    assert adapter.validate_python({"name": "ids", "ids_key": "x"}).ids_key == "x"
    made = make_settings("sft", TELLING, {"text_key": "text"})
    assert adapter.validate_python(made) is made
    for wrong in ({}, {"bos": True}, 3, None):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    with pytest.raises(InputError, match=r"^task='mlm'; expected one of lm, dpo, fim, ids, sft$"):
        check_takes("mlm", "keep_per_token", "why")
    with pytest.raises(InputError, match=r"^--pairs is for --task sft, not for task 'lm': why$"):
        check_takes("lm", "pairs", "why")
    check_takes("sft", "pairs", "why")


def test_a_task_that_lacks_a_part_cannot_be_made() -> None:
    whole = {name: lambda *_: None for name in ("__init__", "prepare", "texts", "encode")}
    made = type("Whole", (Task,), whole)()
    assert (made.masked, made.plain, made.strings, made.joins_pieces) == (False,) * 4
    assert (made.stored_text("x"), made.weight("x"), made.hashed("x")) == (None, 0, None)
    for name in whole:
        with pytest.raises(TypeError, match=name):
            type("Part", (Task,), {one: whole[one] for one in whole if one != name})()
    assert Settings(name="x").text_keys == ("text",)
    assert Settings.has_texts
    assert task_of("lm").weight("some text") == 0


@given(st.integers(1, 20), st.data(), st.booleans(), st.booleans())
def test_pieces_of_a_document_have_their_own_of_everything(
    size: int, data: Any, masked: bool, beside: bool
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    tokens, mask, weights = np.arange(size), np.arange(size) % 2, np.arange(size) / 2
    side = {"w": weights, "v": -weights} if beside else {}
    pieces = Encoded(tokens, mask if masked else None, tuple(cuts), side).pieces()
    assert len(pieces) == len(cuts) + 1
    for piece, start, stop in zip(pieces, [0, *cuts], [*cuts, size], strict=True):
        assert piece.tokens.tolist() == [*range(start, stop)]
        told = None if piece.mask is None else piece.mask.tolist()
        assert told == ([place % 2 for place in range(start, stop)] if masked else None)
        own = {name: values.tolist() for name, values in piece.side.items()}
        halves = [place / 2 for place in range(start, stop)]
        assert own == ({"w": halves, "v": [-one for one in halves]} if beside else {})
        assert piece.cuts == ()


def test_tokens_are_as_wide_as_the_vocabulary_asks_for() -> None:
    sizes = [2, 2**16 - 1, 2**16, 2**16 + 1, 2**17]
    assert [token_dtype(size) for size in sizes] == ["uint16"] * 3 + ["uint32"] * 2


def test_a_failure_of_the_tokenizer_says_so() -> None:
    assert (str(Unencodable()), Unencodable().reason) == (FAILS, FAILS)


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_chat_template_is_looked_for_where_nothing_else_says_how_turns_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_turns, "find_template", lambda given, _: f"of {given}")

    def template(**options: Any) -> Any:
        return make_settings(name, TELLING, options).chat_template  # type: ignore[attr-defined]

    assert template() == template(separator="") == "of None"
    assert template(chat_template="tokenizer", prompt_key="q") == "of tokenizer"
    assert template(chat_template="none", separator="|") == "of none"
    affixes = {"separator": "|", "prompt_prefix": "Q", "completion_prefix": "A"}
    for affix, text in (affixes | {"eod_after_prompt": True}).items():
        assert template(**{affix: text}) is None
        with pytest.raises(InputError, match=f"^{affix} cannot be combined with a chat template"):
            template(**{affix: text}, chat_template="tokenizer")
    assert template(prompt_key="q") is None
    assert name == "dpo" or template(completion_key="a") is None
    with pytest.raises(
        InputError, match=r"^chat_template=3: expected a name, a file, 'tokenizer', 'none'"
    ):
        template(chat_template=3)
