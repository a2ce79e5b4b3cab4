"""Prompts, answers and preferences, token by token, however a record writes them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from jaxdata import tokenizers
from jaxdata.converter.chat.conversations import conversation_of
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks import Dropped, Encoded, make_settings, make_task
from jaxdata.converter.tasks.sft import pairs_of
from tests.converter.chat.test_chat_templates import CHATML
from tests.converter.tasks.telling import EOD, FAILS, TELLING, plain, task_of

WORDS = st.text("xy", max_size=3)


@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3),
    st.sampled_from(["documents", "turns"]),
    st.sampled_from(["all", "last"]),
    st.fixed_dictionaries({}, optional={
        "separator": st.just("|"), "prompt_prefix": st.just("Q"), "completion_prefix": st.just("A"),
    }),
)  # fmt: skip
@settings(max_examples=100)
def test_pairs_become_documents_or_turns_of_one(
    pairs: list[tuple[str, str]], several: str, train_on: str, affixes: dict[str, Any]
) -> None:
    task = task_of("sft", pairs=several, train_on=train_on, prompt_key="d.q", completion_key="d.a",
                   **affixes)  # fmt: skip
    assert (task.masked, task.keys) == (True, ("d",))
    record = {"d": [{"q": prompt, "a": answer} for prompt, answer in pairs]}
    reason = "an empty prompt or completion"
    if several == "turns" and any(not (prompt and answer) for prompt, answer in pairs):
        with pytest.raises(Dropped) as caught:
            task.prepare(record)
        assert caught.value.reason == reason
        return
    prepared = task.prepare(record)
    assert prepared.raw == [text for pair in pairs for text in pair]
    groups = [[pair] for pair in pairs] if several == "documents" else [pairs]
    assert len(prepared.documents) == len(groups)
    for document, group in zip(prepared.documents, groups, strict=True):
        if not all(group[0]):
            assert plain(document) == reason
            continue
        told: list[tuple[Any, int]] = []
        for number, (prompt, answer) in enumerate(group):
            loss = train_on == "all" or number + 1 == len(group)
            told += [(one, 0) for one in (affixes.get("prompt_prefix"), prompt) if one]
            more = affixes.get("separator"), affixes.get("completion_prefix")
            told += [(one, 0) for one in more if one]
            told += [(answer, int(loss)), (EOD, int(loss))]
        ((tokens, mask),) = [plain(one) for one in task.encode([document])]
        kept = [(i, loss) for i, loss in zip(tokens, mask, strict=True) if i not in (301, 302)]
        flat = [(i, loss) for one, loss in told for i in (one.encode() if one != EOD else [EOD])]
        assert kept == flat
        assert task.texts(document) == [one for one, _ in told if one != EOD]


def test_what_is_a_conversation_is_found_where_no_key_is_named() -> None:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    pair = {"prompt": "p", "completion": "c"}
    both = {"conversations": talk, "messages": [*talk, *talk]}
    cleaned: Any = make_task(make_settings("sft", TELLING, {"separator": "|"}), TELLING, str.upper)
    task, named = task_of("sft", separator="|"), task_of("sft", separator="|", messages_key="talk")

    def texts(made: Any, record: dict[str, Any]) -> list[str]:
        return [text for one in made.prepare(record).documents for text in made.texts(one)]

    for made, record, expected in (
        (task, pair, "p|c"),
        (task, pair | {"conversations": talk}, "q|a"),
        (task, both, "q|aq|a"),
        (task_of("sft", separator="|", completion_key="completion"), pair | both, "p|c"),
        (named, pair | {"talk": talk}, "q|a"),
        (cleaned, pair, "P|C"),
        (cleaned, {"messages": talk}, "Q|A"),
    ):
        assert "".join(texts(made, record)) == expected
    assert named.prepare({"talk": talk}).raw == ["q", "a"]
    with pytest.raises(Dropped, match=r"^no answer to train on$"):
        task.prepare({"messages": talk[:1]})
    with pytest.raises(BadRecord, match=r"^a conversation, and neither a chat template nor pref"):
        task_of("sft").prepare({"messages": talk})
    assert task.keys is task_of("sft", prompt_key="a").keys is None
    assert task_of("sft", completion_key="c").keys is None
    assert task_of("sft", prompt_key="a,b", completion_key="c").keys == ("a", "b", "c")


BYTES = tokenizers.load("bytes", bos=7)


def shown(record: Any, **options: Any) -> list[str]:
    """Each document as text, EOD as $, what has loss in capitals."""
    task, made = task_of("sft", BYTES, **options), []
    for (document,) in task.encode(task.prepare(record).documents):
        both = zip(document.tokens.tolist(), document.mask.tolist(), strict=True)
        letters = [("$" if token == EOD else chr(token), loss) for token, loss in both]
        made.append("".join(c.upper() if loss else c for c, loss in letters))
    return made


def test_conversations_without_a_template() -> None:
    turns = [("system", "be"), ("user", "q"), ("assistant", "ab"), ("user", "r")]
    record = {"messages": [{"role": role, "content": text} for role, text in turns]}
    affixes = {"separator": "|", "prompt_prefix": ">"}
    assert shown(record, **affixes) == [">be>q|AB$>r$"]
    first = {"role": "assistant", "content": "hey"}
    assert shown({"messages": [first, *record["messages"]]}, **affixes) == ["HEY$>be>q|AB$>r$"]
    silenced = {"messages": [first | {"weight": 0}, *record["messages"]]}
    assert shown(silenced, **affixes) == ["hey$>be>q|AB$>r$"], "its EOD has none either"


def test_however_a_conversation_is_written() -> None:
    parts = [{"type": "text", "value": "a"}, ""]
    for messages in (
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        ["q", "a"],
        [{"content": "q"}, {"content": "a"}],
        [{"role": "user", "content": ["q"]}, {"role": "assistant", "content": parts}],
    ):
        found = conversation_of({"d": {"m": messages}}, "d.m")
        told = [(one["role"], one["content"]) for one in found.messages]
        assert (told, found.losses) == ([("user", "q"), ("assistant", "a")], [False, True])


CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}


def test_calls_of_functions_are_the_assistants_and_results_are_not() -> None:
    roles = ["human", "function_call", "observation", "gpt"]
    found = conversation_of({"m": [{"from": role, "value": "x"} for role in roles]}, "m")
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.losses == [False, True, False, True]
    record = {"m": [{"role": "user", "content": "q"}, CALL], "tools": "[1]", "system": "s"}
    found = conversation_of(record, "m")
    assert found.messages == [{"role": "system", "content": "s"}, record["m"][0], CALL]
    assert (found.losses, found.variables) == ([False, False, True], {"tools": [1]})


def test_pairs_are_of_one_number_or_one_is_of_all() -> None:
    with pytest.raises(BadRecord, match="unequal numbers"):
        list(pairs_of({"a": [{"p": "x"}], "b": [{"c": "x"}, {"c": "y"}]}, ["a.p"], "b.c"))
    one = {"a": {"p": "x"}, "b": [{"c": "y"}, {"c": "z"}]}
    assert list(pairs_of(one, ["a.p"], "b.c")) == [("x", "y"), ("x", "z")]
    whole = {"a.p": "x", "a": 1, "e": "", "b.c": "y"}
    assert list(pairs_of(whole, ["e", "a.p", "e", "a.p"], "b.c")) == [("x\n\nx", "y")]


def sides(record: dict[str, Any], **options: Any) -> list[Encoded]:
    task = task_of("dpo", BYTES, **options)
    assert (task.streams, task.masked, task.keys) == (("chosen", "rejected"), True, None)
    (document,) = task.prepare(record).documents
    (made,) = task.encode([document])
    assert not isinstance(made, Dropped)
    return list(made)


def texts(both: list[Encoded]) -> list[tuple[str, str]]:
    """(prompt, answer) of both sides; every answer ends with EOD, which has loss."""
    found = []
    for side in both:
        assert side.mask is not None
        assert side.tokens[-1] == BYTES.eod_id
        first = int(side.mask.argmax())
        assert side.mask.tolist() == [0] * first + [1] * (len(side.mask) - first)
        found.append((BYTES.decode(side.tokens[:first]), BYTES.decode(side.tokens[first:])))
    return found


TURNS = ("user", "q"), ("assistant", "good"), ("assistant", "bad")
USER, GOOD, BAD = ({"role": role, "content": text} for role, text in TURNS)
HUMAN, GPT = {"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}


def test_however_a_pair_is_written() -> None:
    for record in (
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {"prompt": "q", "chosen": [GOOD], "rejected": "bad"},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"conversations": [HUMAN], "chosen": GPT, "rejected": BAD},
        {"prompt": None, "messages": [USER], "chosen": GOOD, "rejected": BAD},
    ):
        assert texts(sides(record, separator="|")) == [("q|", "good"), ("q|", "bad")]
    with pytest.raises(BadRecord, match="neither a chat template nor prefixes"):
        sides({"prompt": [USER], "chosen": GOOD, "rejected": BAD})


def test_the_prompt_is_what_both_sides_begin_with() -> None:
    once, twice = [USER, GOOD], [USER, GOOD, USER, BAD]
    for chosen, rejected, first, second in (
        (twice, [*twice[:3], GOOD], "q|good$q|", ["bad", "good"]),
        (once, once, "q|", ["good", "good"]),
        ([*once, *once], once, "q|", ["good$q|good", "good"]),
        (once, twice, "q|", ["good", "good$q|bad"]),
    ):
        made = sides({"chosen": chosen, "rejected": rejected}, separator="|")
        for side, answer in zip(made, second, strict=True):
            told = "".join("$" if i == EOD else chr(i) for i in side.tokens.tolist())
            assert told == f"{first}{answer}$"
            assert side.mask is not None
            assert not side.mask[: len(first)].any()
            assert side.mask[len(first) :].all() == ("|" not in answer)
    assert len(sides({"prompt": "q", "chosen": CALL, "rejected": BAD}, separator="|")) == 2
    dialogue = "Human: a\n\nAssistant: b\n\nHuman: c\n\nASSISTANT:"
    record = {"chosen": f"{dialogue} yes", "rejected": f"{dialogue} no"}
    assert texts(sides(record)) == [(dialogue, " yes"), (dialogue, " no")]


def test_answers_inside_the_prompt_have_no_loss() -> None:
    first = {"role": "assistant", "content": "one"}
    record = {"prompt": [USER, first, USER], "chosen": GOOD, "rejected": BAD}
    (prompt, answer), (same, _) = texts(sides(record, chat_template=CHATML))
    assert (prompt, answer) == (same, "good<|im_end|>\n")
    assert prompt.endswith("one<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n")


TALK = "Human: x\n\nAssistant:"
ASKED = {"messages": ["q", "a"]}


NO_CONVERSATION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "q"}, "no key 'completion'"),
    ({"messages": []}, "'messages' is not a list of messages"),
    ({"messages": [{"role": "user"}]}, "a message has no content"),
    ({"messages": [{"content": "q", "to": "x"}, {"role": "user"}]}, "a message has no role"),
    ({"messages": [{"content": "q", "role": 1}]}, "'role' is not a string"),
    ({"messages": [{"role": "user", "content": 1}]}, "the content of a message is not text"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "something that is no"),
    (ASKED | {"tools": "{"}, "'tools' is not JSON"),
    (ASKED | {"tools": "[" * 10**5}, "'tools' are nested more than 64 deep"),
    (ASKED | {"tools": "[" * 99 + "]" * 99}, "'tools' are nested more than 64"),
    (ASKED | {"tools": json.loads("[" * 900 + "]" * 900)}, "'tools' are nested more than 64"),
]
NO_PAIR: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "q", "chosen": "", "rejected": "bad"}, "an empty answer"),
    ({"prompt": "q", "chosen": "good", "rejected": [USER]}, "an empty answer"),
    ({"prompt": "q", "chosen": "good"}, "no key 'rejected'"),
    ({"prompt": "q", "chosen": 1, "rejected": "bad"}, "'an answer' is not a string"),
    ({"chosen": [USER, GOOD], "rejected": [BAD, BAD]}, "begin with no common prompt"),
    ({"chosen": [USER, GOOD], "rejected": "bad"}, "no common prompt"),
    ({"chosen": [GOOD], "rejected": [GOOD]}, "begin with no common prompt"),
    ({"chosen": "yes", "rejected": "no"}, "no prompt, and no 'assistant:' in the chosen text"),
    ({"chosen": f"{TALK} y", "rejected": f"a{TALK} n"}, "does not begin with the prompt of th"),
]


def test_what_is_no_conversation_or_no_pair_is_set_aside_or_left_out() -> None:
    for record, reason in NO_CONVERSATION:
        with pytest.raises(BadRecord, match=reason):
            shown(record, **{"chat_template": CHATML} if "nest" in reason else {"separator": "|"})
    for record, reason in NO_PAIR:
        with pytest.raises((Dropped, BadRecord), match=reason):
            sides(record, separator="|")


def test_a_pair_is_set_aside_where_one_side_cannot_be_encoded() -> None:
    task = task_of("dpo")
    pairs = [("good", "bad"), ("!", "bad"), ("good", "!")]
    records = [{"prompt": "q", "chosen": one, "rejected": other} for one, other in pairs]
    documents = [task.prepare(record).documents[0] for record in records]
    made = task.encode(documents)
    assert [isinstance(one, tuple) or one.reason for one in made] == [True, FAILS, FAILS]
    assert task.texts(documents[0], "rejected") == ["q", "bad"]
    assert task.texts(documents[0]) == ["q", "good", "q", "bad"]
