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
from jaxdata.converter.chat import formatting
from jaxdata.converter.tasks.base import Encoded, Settings, Task, Unencodable, token_dtype
from jaxdata.converter.tasks.registry import (
    TaskSettings,
    check_takes,
    defaults,
    make_settings,
    task_names,
    task_options,
)
from tests.converter.tasks.telling import FAILS, TELLING

TURNS = {
    "separator": "", "prompt_prefix": "", "completion_prefix": "", "eod_after_prompt": False,
    "chat_template": None, "template_variables": {}, "allow_special": False,
}  # fmt: skip
TEXTS = {"text_key": "text", "text_joiner": "\n\n"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "lm": TEXTS,
    "dpo": TURNS | {
        "train_on": "last", "prompt_key": "prompt", "chosen_key": "chosen",
        "rejected_key": "rejected",
    },
    "fim": TEXTS | {
        "fim_rate": 0.9, "spm_rate": 0.5, "fim_context": 2_048, "seed": 0,
        "fim_prefix": None, "fim_middle": None, "fim_suffix": None,
    },
    "ids": {
        "ids_key": "input_ids", "mask_key": None, "labels_key": None, "ids_end": "add",
        "keep_per_token": [],
    },
    "sft": TURNS | {
        "train_on": "all", "prompt_key": [], "completion_key": "", "messages_key": "",
        "content_key": "", "pairs": "documents",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_tasks_are_at_their_defaults_where_nothing_is_given(name: str) -> None:
    assert [*task_names()] == [*DEFAULTS], "the default first"
    assert defaults(name) == {"name": name, "bos": False} | DEFAULTS[name]
    assert {*task_options(name)} == {*DEFAULTS[name], "bos"}
    assert {*task_options()} == {"bos"}.union(*DEFAULTS.values())
    escaped = {name for name, one in task_options().items() if told(one.field, "escapes")}
    assert escaped == {"text_joiner", "separator", "prompt_prefix", "completion_prefix"}


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("mlm", {}, "task='mlm'; expected one of lm, dpo, fim, ids, sft"),
        ("fim", {"fim_rate": -0.01, "nope": 1}, "task 'fim': fim_rate=-0.01: expected at least 0"),
        ("fim", {"spm_rate": 1.01}, "task 'fim': spm_rate=1.01: expected at most 1"),
        ("fim", {"fim_context": 63}, "task 'fim': fim_context: expected 64 tokens or more, or 0"),
        ("sft", {"pairs": "x"}, "task 'sft': pairs='x': expected 'documents' or 'turns'"),
        ("sft", {"text_key": "t"}, "task 'sft': there is no setting 'text_key'"),
        ("ids", {"mask_key": "m", "labels_key": "l"}, "task 'ids': give a mask or labels, not bot"),
        ("sft", {"chat_template": 3}, "chat_template=3: expected a name, a file, 'tokenizer', 'no"),
        ("dpo", {"separator": "|", "chat_template": "chatml"}, "separator cannot be combined with"),
        ("sft", {"chat_template": "tokenizer"}, "tokenizer 'bytes' has no chat template; give one"),
        ("sft", {"chat_template": "no/where"}, "--chat-template 'no/where' is none of chatml, de"),
    ],
)
def test_settings_are_refused_with_what_is_expected(task: str, options: Any, says: str) -> None:
    with pytest.raises(InputError) as refused:
        make_settings(task, TELLING, options)
    assert str(refused.value).startswith(says)


def test_settings_are_of_the_task_that_they_name_or_wrong() -> None:
    adapter = TypeAdapter(TaskSettings)
    assert adapter.validate_python({"name": "ids", "ids_key": "x"}).ids_key == "x"
    made = make_settings("sft", TELLING, {"text_key": "text"})
    assert adapter.validate_python(made) is made
    for wrong in ({}, {"bos": True}, 3, None):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    with pytest.raises(InputError, match=r"^--pairs is for --task sft, not for task 'lm': why$"):
        check_takes("lm", "pairs", "why")
    check_takes("sft", "pairs", "why")
    with pytest.raises(InputError, match=r"^task='mlm'"):
        check_takes("mlm", "pairs", "why")


@given(st.integers(1, 20), st.data(), st.booleans(), st.booleans())
def test_pieces_of_a_document_have_their_own_of_everything(
    size: int, data: Any, masked: bool, beside: bool
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    tokens = np.arange(size)
    side = {"w": tokens / 2, "v": -tokens} if beside else {}
    pieces = Encoded(tokens, tokens % 2 if masked else None, tuple(cuts), side).pieces()
    assert [len(one.tokens) for one in pieces] == np.diff([0, *cuts, size]).tolist()
    assert np.concatenate([one.tokens for one in pieces]).tolist() == tokens.tolist()
    for one in pieces:
        assert (one.mask is not None, one.side.keys(), one.cuts) == (masked, side.keys(), ())
        assert one.mask is None or one.mask.tolist() == (one.tokens % 2).tolist()
        for name, values in one.side.items():
            assert values.tolist() == side[name][one.tokens].tolist()


def test_what_a_task_is_where_it_says_nothing_else() -> None:
    methods = ("__init__", "prepare", "texts", "encode")
    made = type("Whole", (Task,), {name: lambda *_: None for name in methods})()
    assert (made.masked, made.plain, made.strings, made.joins_pieces) == (False,) * 4
    assert (made.stored_text("x"), made.weight("x"), made.hashed("x")) == (None, 0, None)
    assert (Settings(name="x").text_keys, Settings.has_texts) == (("text",), True)
    sizes = [2, 2**16 - 1, 2**16, 2**16 + 1, 2**17]
    assert [token_dtype(size) for size in sizes] == ["uint16"] * 3 + ["uint32"] * 2
    assert (str(Unencodable()), Unencodable().reason) == (FAILS, FAILS)


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_chat_template_is_looked_for_where_nothing_else_says_how_turns_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formatting, "find_template", lambda given, _: f"of {given}")

    def template(**options: Any) -> Any:
        return make_settings(name, TELLING, options).chat_template  # type: ignore[attr-defined]

    assert template() == template(separator="") == "of None"
    assert template(chat_template="tokenizer", prompt_key="q") == "of tokenizer"
    assert template(chat_template="none", separator="|") == "of none"
    for affix in ("separator", "prompt_prefix", "completion_prefix", "prompt_key"):
        assert template(**{affix: "|"}) is None
    assert template(eod_after_prompt=True) is None
    assert name == "dpo" or template(completion_key="a") is None
