"""Prompts and answers: the vectors of Cerebras' masks, pairs, turns, and what is set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.converter.chat.conversations import conversation_of
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks import Dropped, make_settings, make_task
from jaxdata.converter.tasks.fields import pairs_of
from jaxdata.converter.tasks.spans import join
from jaxdata.errors import InputError

BYTES = tokenizers.load("bytes", bos=7)
EOD = BYTES.eod_id


def documents(record: Mapping[str, Any], **options: Any) -> list[Any]:
    task = make_task(make_settings("sft", BYTES, options), BYTES)
    prepared = task.prepare(record).documents
    found = task.encode([one for one in prepared if not isinstance(one, Dropped)])
    return [one[0] for one in found]


def shown(record: Mapping[str, Any], **options: Any) -> list[str]:
    """Each document as text, EOD as $, what has loss in capitals."""
    made = []
    for document in documents(record, **options):
        both = zip(document.tokens.tolist(), document.mask.tolist(), strict=True)
        letters = [("$" if token == EOD else chr(token), loss) for token, loss in both]
        made.append("".join(c.upper() if loss else c for c, loss in letters))
    return made


def masks(parts: Sequence[Sequence[int]], losses: Sequence[bool], length: int) -> tuple[Any, ...]:
    """Inputs, Cerebras' mask and labels of a row of `length` slots; 1 is the pad."""
    whole = join([np.array(part, int) for part in parts], losses, "uint16")
    tokens = np.concatenate([whole.tokens, np.full(length + 1 - len(whole.tokens), 1)])
    mask = np.concatenate([whole.mask, np.zeros(length + 1 - len(whole.mask), int)])
    return tokens[:-1].tolist(), mask[1:].tolist(), tokens[1:].tolist()


def test_the_vectors_of_summarization_masks() -> None:
    prompt, answer, eos = [11, 12, 13], [21, 22], [0]
    _, mask, labels = masks([prompt, answer, eos], [False, True, True], 8)
    assert mask == [0, 0, 1, 1, 1, 0, 0, 0]
    assert labels == [12, 13, 21, 22, 0, 1, 1, 1]
    _, mask, _ = masks([prompt, [9], answer, eos], [False, False, True, True], 8)
    assert mask == [0, 0, 0, 1, 1, 1, 0, 0], "a separator belongs to the prompt"
    _, mask, _ = masks([prompt, [21], [22, 23], eos], [False, False, True, True], 8)
    assert mask == [0, 0, 0, 1, 1, 1, 0, 0], "a completion prefix has no loss"


def test_a_pair() -> None:
    record = {"prompt": "q", "completion": "ab"}
    assert shown(record) == ["qAB$"]
    assert documents(record)[0].mask.tolist() == [0, 1, 1, 1]
    assert shown(record, separator="|") == ["q|AB$"]
    affixes = {"prompt_prefix": "p:", "completion_prefix": "c:", "eod_after_prompt": True}
    assert shown(record, separator="|", **affixes) == ["p:q$|c:AB$"]
    assert documents(record, eod_after_prompt=True)[0].mask.tolist() == [0, 0, 1, 1, 1]
    bos = documents(record, bos=True)[0]
    assert (bos.tokens.tolist()[0], bos.mask.tolist()) == (7, [0, 0, 1, 1, 1])


def test_several_pairs_are_documents_or_turns() -> None:
    record = {"t": "do ", "cases": [{"i": "x", "o": "y"}, {"i": "v", "o": "w"}]}
    keys = {"prompt_key": "cases.i", "completion_key": "cases.o"}
    assert shown(record, **keys) == ["xY$", "vW$"]
    assert shown(record, pairs="turns", **keys) == ["xY$vW$"]
    assert shown(record, prompt_key="t,cases.i", completion_key="cases.o") == [
        "do \n\nxY$",
        "do \n\nvW$",
    ]
    empty = {"cases": [{"i": "x", "o": ""}, {"i": "v", "o": "w"}]}
    task = make_task(make_settings("sft", BYTES, keys), BYTES)
    first, second = task.prepare(empty).documents
    assert isinstance(first, Dropped)
    assert first.reason == "an empty prompt or completion"
    assert not isinstance(second, Dropped)
    with pytest.raises(Dropped, match="an empty prompt or completion"):
        documents(empty, pairs="turns", **keys)


def test_conversations_without_a_template() -> None:
    turns = [("system", "be"), ("user", "q"), ("assistant", "ab"), ("user", "r")]
    record = {"messages": [{"role": role, "content": text} for role, text in turns]}
    affixes = {"separator": "|", "prompt_prefix": ">"}
    assert shown(record, **affixes) == [">be>q|AB$>r$"]
    answered = [{"role": "assistant", "content": "hey"}, *record["messages"]]
    assert shown({"messages": answered}, **affixes) == ["HEY$>be>q|AB$>r$"]
    silenced = [{"role": "assistant", "content": "hey", "weight": 0}, *record["messages"]]
    (document,) = documents({"messages": silenced}, **affixes)
    assert document.mask[:4].tolist() == [0, 0, 0, 0], "its EOD has none either"
    with pytest.raises(BadRecord, match="neither a chat template nor prefixes"):
        documents(record)
    silent = {"messages": record["messages"][:2]}
    with pytest.raises(Dropped, match="no answer to train on"):
        documents(silent, **affixes)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"m": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "m"),
        ({"m": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "m"),
        (
            {"d": {"m": [{"role": "prompter", "content": "q"}, {"from": "bot", "value": "a"}]}},
            "d.m",
        ),
        ({"m": ["q", "a"]}, "m"),
        ({"m": [{"content": "q"}, {"content": "a"}]}, "m"),
        (
            {
                "m": [
                    {"role": "user", "content": [{"type": "text", "text": "q"}]},
                    {"role": "assistant", "content": [{"type": "text", "value": "a"}, ""]},
                ]
            },
            "m",
        ),
    ],
)
def test_however_a_conversation_is_written(record: dict[str, Any], key: str) -> None:
    found = conversation_of(record, key)
    assert [(m["role"], m["content"]) for m in found.messages] == [
        ("user", "q"),
        ("assistant", "a"),
    ]
    assert found.losses == [False, True]


def test_calls_of_functions_are_the_assistants_and_results_are_not() -> None:
    roles = ["human", "function_call", "observation", "gpt"]
    found = conversation_of({"m": [{"from": role, "value": "x"} for role in roles]}, "m")
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.losses == [False, True, False, True]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    found = conversation_of({"m": [{"role": "user", "content": "q"}, call], "tools": "[1]"}, "m")
    assert found.messages[1]["tool_calls"] == [{"name": "f"}]
    assert found.variables == {"tools": [1]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "q"}, "no key 'completion'"),
        ({"prompt": None, "completion": "a"}, "'prompt' is null"),
        ({"prompt": 3, "completion": "a"}, "'prompt' is not a string"),
        ({"prompt": "\ud800", "completion": "a"}, "'prompt' holds half a surrogate pair"),
        ({"messages": "q"}, "'messages' is not a list of messages"),
        ({"messages": []}, "'messages' is not a list of messages"),
        ({"messages": [{"role": "user"}]}, "a message has no content"),
        ({"messages": [{"content": "q", "role": 1}]}, "'role' is not a string"),
        ({"messages": [{"role": "user", "content": 1}]}, "the content of a message is not text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "a message holds something that is not text",
        ),
        ({"messages": ["q", "a"], "tools": "{"}, "'tools' is not JSON"),
        ({"messages": ["q", "a"], "tools": "[" * 10**5}, "'tools' are nested more than 64 deep"),
        ({"messages": [{"role": "a", "content": "\udc00"}]}, "'content' holds half a surrogate"),
    ],
)
def test_what_is_not_usable_is_set_aside(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        documents(record, separator="|")


@pytest.mark.parametrize("depth", [100, 900])
@pytest.mark.parametrize("as_text", [True, False])
def test_what_is_nested_deep_is_set_aside(depth: int, as_text: bool, tmp_path: Path) -> None:
    """However far Python itself would follow it."""
    tools = "[" * depth + "]" * depth
    source = {"messages": ["q", "a"], "tools": tools if as_text else json.loads(tools)}
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}|{% endfor %}")
    with pytest.raises(BadRecord, match="'tools' are nested more than 64 deep"):
        documents(source, chat_template=str(tmp_path / "t.jinja"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": [{"p": "x"}], "b": [{"c": "x"}, {"c": "y"}]}, "unequal numbers"),
        ({"a": ["x"], "b": [{"c": "x"}]}, "'a' is not a list of objects"),
        ({"a": "x", "b": [{"c": "x"}]}, "'a' is not an object"),
        ({"a": [{"p": "x"}], "b": [{"d": "x"}]}, "no key 'c'"),
        ({"a": [{"p": [{"p": "x"}]}]}, "'p' is not a string"),
        ({"b": [{"c": "x"}]}, "no key 'a.p'"),
    ],
)
def test_pairs_that_do_not_match_are_set_aside(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        list(pairs_of(record, ["a.p"], "b.c"))


@given(
    st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=4),
    st.sampled_from(["documents", "turns"]),
    st.text(max_size=3),
)
def test_exactly_completions_and_their_eod_have_loss(
    pairs: list[tuple[str, str]], together: str, separator: str
) -> None:
    record = {"x": [{"p": prompt, "c": completion} for prompt, completion in pairs]}
    options = {"prompt_key": "x.p", "completion_key": "x.c", "pairs": together}
    found = documents(record, separator=separator, **options)
    expected = [[*completion.encode(), EOD] for _, completion in pairs]
    trained = [document.tokens[document.mask == 1].tolist() for document in found]
    if together == "turns":
        expected = [[token for one in expected for token in one]]
    assert trained == expected
    whole = b"".join((p + separator + c).encode() for p, c in pairs)
    assert bytes(t for d in found for t in d.tokens.tolist() if t != EOD) == whole


def test_wrong_options_are_named() -> None:
    for options, says in (
        ({"nope": 1}, "task 'sft' has no option 'nope'; it has bos, separator"),
        ({"pairs": "x"}, "task 'sft': pairs='x': input should be 'documents' or 'turns'"),
        ({"text_key": "t"}, "task 'sft' has no option 'text_key'"),
    ):
        with pytest.raises(InputError, match=says):
            make_settings("sft", BYTES, options)
    with pytest.raises(InputError, match="task='mlm'; expected one of lm, dpo, fim, ids, sft"):
        make_settings("mlm", BYTES, {})


def test_real_instructions(shared_data: Path) -> None:
    with (shared_data / "instruct/self_instruct_seed_tasks.jsonl").open() as lines:
        records = [json.loads(line) for line in lines]
    keys = {"prompt_key": "instruction,instances.input", "completion_key": "instances.output"}
    found = [document for record in records for document in documents(record, **keys)]
    answers = [one["output"] for record in records for one in record["instances"]]
    trained = [BYTES.decode(document.tokens[document.mask == 1]) for document in found]
    assert trained == answers
    assert len(answers) >= len(records) == 175
