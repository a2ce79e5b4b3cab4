"""What every task keeps to, what its settings are where nobody gives them, and what they refuse."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from jaxdata.base.errors import InputError
from jaxdata.converter.chat import formatting
from jaxdata.converter.tasks.registry import TaskSettings, check_takes, make_settings
from tests.converter.tasks.telling import TELLING


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
    for wrong in ({"bos": True}, 3):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    with pytest.raises(InputError, match=r"^pairs is for --task sft, not for task 'lm': why$"):
        check_takes("lm", "pairs", "why")
    check_takes("sft", "pairs", "why")


def test_a_chat_template_is_looked_for_where_nothing_else_says_how_turns_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formatting, "find_template", lambda given, _: f"of {given}")

    def template(**options: Any) -> Any:
        return make_settings("sft", TELLING, options).chat_template  # type: ignore[attr-defined]

    assert template() == template(separator="") == "of None"
    assert template(chat_template="tokenizer", prompt_key="q") == "of tokenizer"
    assert template(chat_template="none", separator="|") == "of none"
    affixes = ("separator", "prompt_prefix", "completion_prefix")
    for affix in (*affixes, "prompt_key", "completion_key"):
        assert template(**{affix: "|"}) is None
