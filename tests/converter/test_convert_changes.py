"""Every option of a conversion is part of it: none changes unseen between a begin and a resume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jaxdata import tokenizers
from jaxdata.converter.continuing.compatibility import unfinished_changes
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.parameters import Options, Parameters, make_parameters

TOKENIZER = tokenizers.load("bytes", bos=2)
_LM: dict[str, Any] = {
    "text_key": "body",
    "text_joiner": " ",
    "bos": True,
    "short_rate": 0.5,
    "short_length": 9,
    "seed": 1,
    "transform": "mine:f",
    "keep": ["url"],
    "strip": True,
    "ftfy": True,
    "normalize": "NFC",
    "wikitext": True,
    "min_chars": 1,
    "max_chars": 9,
    "min_tokens": 1,
    "max_tokens": 9,
    "split_ratio": "train=2,val=1",
    "split_by": "url",
    "split_contiguous": True,
    "record_tokens": 9,
    "unit_bytes": 9,
    "max_record_bytes": 9,
    "piece_bytes": 16,
}
_FIM = {"fim_rate": 0.1, "spm_rate": 0.1, "fim_prefix": 6, "fim_middle": 7, "fim_suffix": 8}
_FIM |= {"fim_context": 4_096}
_SFT: dict[str, Any] = {
    "prompt_key": "ask",
    "completion_key": "answer",
    "messages_key": "talk",
    "content_key": "said",
    "pairs": "turns",
    "truncate_to": 99,
    "truncate_prompts": "keep_start",
    "least_turn": 9,
    "chat_template": "template.jinja",
    "template_variables": {"a": 1},
    "allow_special": True,
    "train_on": "last",
    "separator": " ",
    "prompt_prefix": "Q: ",
    "completion_prefix": "A: ",
    "eod_after_prompt": True,
}
_DPO = {"prompt_key": "ask", "chosen_key": "good", "rejected_key": "bad", "train_on": "all"}
_IDS: dict[str, Any] = {
    "ids_key": "ids",
    "mask_key": "mask",
    "labels_key": "labels",
    "ids_end": "keep",
}
_IDS |= {"keep_per_token": "weight:float32"}
_SENTINELS = {"fim_prefix": 3, "fim_middle": 4, "fim_suffix": 5}
_CHANGES = [
    (task, task_options, {name: value})
    for task, task_options, changes in [
        ("lm", {}, _LM),
        ("fim", _SENTINELS, _FIM),
        ("sft", {}, _SFT),
        ("dpo", {}, _DPO),
        ("ids", {}, _IDS),
    ]
    for name, value in changes.items()
]


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "mine.py").write_text("def f(record):\n    return record")
    (tmp_path / "template.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def make(options: dict[str, Any]) -> Parameters:
        return make_parameters(find_inputs("a.jsonl"), TOKENIZER, options)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(("task", "options", "change"), _CHANGES)
def test_a_change_is_refused_by_name(
    parameters: Any, task: str, options: dict[str, Any], change: dict[str, Any]
) -> None:
    begun = parameters({"task": task, **options})
    wanted = parameters({"task": task, **options, **change})
    (name,) = change
    changes = unfinished_changes(begun.encode(), wanted)
    assert [one for one in changes if re.match(f"{name} was .*, is ", one)]
    assert not unfinished_changes(begun.encode(), begun)


def test_no_option_is_forgotten() -> None:
    tried = {name for _, _, change in _CHANGES for name in change}
    assert tried == Options.__annotations__.keys() - {"task"}


def test_another_task_is_told_of_and_nothing_else(parameters: Any) -> None:
    begun, wanted = parameters({}), parameters({"task": "sft"})
    assert unfinished_changes(begun.encode(), wanted) == ["task was 'lm', is 'sft'"]


def test_an_append_that_another_one_overtook_says_what_the_source_had(parameters: Any) -> None:
    began, now = (parameters({}).model_copy(update={"first_file": n}) for n in (3, 5))
    says = "--append: the source had 3 input files, has 5"
    assert unfinished_changes(began.encode(), now) == [says]
