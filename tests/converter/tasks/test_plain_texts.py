"""Texts, and texts to fill in the middle of: token by token, by a tokenizer that tells.

And what the settings of every task are where nobody gives them, and what they refuse.
"""

import hashlib
from math import ceil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from pydantic import TypeAdapter, ValidationError

from jaxdata.base.errors import InputError
from jaxdata.base.seeds import derive
from jaxdata.converter import tasks
from jaxdata.converter.chat import formatting
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks import Dropped, Span, SpanEncoder, make_settings, make_task
from jaxdata.converter.tasks.fim import divide
from jaxdata.tokenizers import Tokenizer
from tests.converter.tasks.telling import BOS, EOD, FAILS, TELLING, ids_of, plain, task_of
from tests.tokenizers.test_tokenizers import open_one

TEXT = st.text("ab\n!", max_size=5) | st.just("\x07a")


@given(st.lists(TEXT, max_size=5), st.booleans())
def test_texts_are_between_begin_and_end(texts: list[str], bos: bool) -> None:
    task = task_of("lm", bos=bos)
    documents = [one for text in texts for one in task.prepare({"text": text}).documents]
    whole = [([*[BOS] * bos, *ids_of(text), EOD], None) for text in texts]
    expected = [FAILS if "!" in text else one for text, one in zip(texts, whole, strict=True)]
    assert [plain(one) for one in task.encode(documents)] == expected
    assert [task.texts(one) for one in documents] == [(text,) for text in texts]
    assert [task.stored_text(one) for one in documents] == texts


def test_texts_of_several_keys_are_joined_and_cleaned() -> None:
    task: Any = make_task(make_settings("lm", TELLING, {"text_key": "a , b.c"}), TELLING, str.upper)
    assert (task.keys, task.plain) == (("a", "b.c"), False)
    prepared = task.prepare({"a": "x", "b": {"c": "y"}})
    assert (prepared.documents, prepared.raw) == (("X\n\nY",), ("x\n\ny",))
    assert task.prepare({"a": None, "b": {"c": "y"}}).documents == ("Y",)
    with pytest.raises(BadRecord, match="'a' is null"):
        task.prepare({"a": None})


GOES_ON = st.sampled_from([None, None, True, False])
SPANS = st.builds(Span, TEXT | st.integers(0, 9), st.booleans(), st.booleans(), GOES_ON)


@given(st.lists(st.lists(SPANS, max_size=4), max_size=4), st.booleans())
def test_spans_are_encoded_by_themselves_and_joined(documents: list[list[Span]], bos: bool) -> None:
    found = SpanEncoder(TELLING, bos).encode(documents)
    expected: list[Any] = []
    for spans in documents:
        pairs: list[tuple[int, int]] = []
        for number, span in enumerate(spans):
            goes_on = number > 0 if span.continues is None else span.continues
            text = span.content
            ids = [text] if isinstance(text, int) else ids_of(text, span.special, goes_on)
            pairs += [(i, int(span.loss)) for i in ids]
        if bos and (not pairs or pairs[0][0] != BOS):
            pairs = [(BOS, 0), *pairs]
        failed = any(isinstance(span.content, str) and "!" in span.content for span in spans)
        told = [i for i, _ in pairs], [loss for _, loss in pairs]
        expected.append(FAILS if failed else told)
    assert [plain(one) for one in found] == expected


@given(st.lists(st.text("ab!\u00e9", max_size=9)), st.booleans(), st.booleans(), st.integers(1, 9))
def test_long_texts_are_encoded_in_parts_that_go_on(
    texts: list[str], special: bool, continuing: bool, long: int
) -> None:
    with mock.patch.object(tasks, "_LONG", long):
        found = tasks.encode(TELLING, texts, special=special, continuing=continuing)
    expected: list[Any] = []
    for text in texts:
        parts = [text] if special else [text[at : at + long] for at in range(0, len(text), long)]
        told = [ids_of(part, special, continuing or n > 0) for n, part in enumerate(parts)]
        expected.append(FAILS if "!" in text else [i for ids in told for i in ids])
    assert [one.reason if isinstance(one, Dropped) else one.tolist() for one in found] == expected


@given(st.text("ab\n", min_size=1, max_size=120), st.integers(1, 130))
@example("a" * 14 + "\n" + "a" * 17, 2)
@example("a" * 13 + "\n" + "a" * 18, 2)
def test_a_text_is_divided_evenly_but_for_line_ends(text: str, count: int) -> None:
    count = min(count, len(text))
    near = len(text) // (8 * count)
    edges = [0]
    for number in range(1, count):
        at = len(text) * number // count
        ends = [place + 1 for place in range(at - near, at) if text[place] == "\n"]
        edges.append(max(ends, default=at))
    edges.append(len(text))
    assert divide(text, count) == [text[edges[n] : edges[n + 1]] for n in range(count)]
    assert divide(text, len(text) + 1) == [*text]


FIM = {"fim_prefix": 1, "fim_middle": 2, "fim_suffix": 3}


RATES, SPM_RATES = st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 0.5, 1.0])


@given(st.text("ab\u00e9 ", max_size=9), RATES, SPM_RATES, st.booleans())
def test_a_middle_is_drawn_by_content(text: str, rate: float, spm: float, goes_on: bool) -> None:
    def chance(name: str) -> int:
        return derive(0, "fim", name, hashlib.sha256(text.encode()).hexdigest())

    task = task_of("fim", **FIM, fim_rate=rate, spm_rate=spm)
    first = {"continues": goes_on}
    if chance("rate") >= rate * 2**64:
        expected = [Span(text, True, **first)]
    else:
        a, b = sorted(chance(name) % (len(text) + 1) for name in ("one edge", "other edge"))
        prefix, middle, suffix = Span(text[:a], True, **first), text[a:b], text[b:]
        pre, mid, suf = (Span(sentinel, True) for sentinel in (1, 2, 3))
        expected = [pre, prefix, suf, Span(suffix, True), mid, Span(middle, True)]
        if chance("spm") < spm * 2**64:
            expected = [pre, suf, Span(suffix, True), mid, prefix, Span(middle, True)]
    assert task._spans(text, goes_on) == expected


def in_order(tokens: list[int]) -> str:
    """The text of a piece, its parts in their order again."""
    inner = [i for i in tokens if i < 256]
    if inner[:1] != [1]:
        return bytes(inner).decode()
    mid, suf = inner.index(2), inner.index(3)
    told = inner[mid + 1 :] + inner[2:mid]
    if suf > 1:
        told = inner[1:suf] + inner[mid + 1 :] + inner[suf + 1 : mid]
    return bytes(told).decode()


LONG = st.text("ab\né", min_size=20, max_size=300)


@given(LONG, st.sampled_from([64, 65, 100, 0]), st.sampled_from([0.5, 1.0]), st.booleans())
@settings(max_examples=80)
def test_pieces_of_a_long_document_fit_the_context_and_are_the_text(
    text: str, context: int, rate: float, bos: bool
) -> None:
    task = task_of("fim", **FIM, fim_context=context, fim_rate=rate, bos=bos)
    whole_task = task_of("fim", **FIM, fim_context=0, fim_rate=rate, bos=bos)
    [(made,)] = task.encode([text])
    [(whole,)] = whole_task.encode([text])
    assert (whole.cuts, whole.mask) == ((), None)
    if not context or len(whole.tokens) <= context:
        assert (made.tokens.tolist(), made.cuts) == (whole.tokens.tolist(), ())
        return
    pieces = [piece.tolist() for piece in np.split(made.tokens, made.cuts)]
    assert len(pieces) >= max(2, ceil(len(whole.tokens) / (15 / 16 * (context - 1))))
    assert pieces[-1].pop() == EOD
    for number, piece in enumerate(pieces):
        assert len(piece) <= context - 1
        assert (piece[0] == BOS) == bos
        if rate == 1:
            assert [piece.count(i) for i in (1, 2, 3)] == [1, 1, 1]
        assert number == 0 or 302 in piece
    assert "".join(in_order(piece[bos:]) for piece in pieces) == text


def encoded(tokenizer: Tokenizer, text: str, **options: Any) -> list[list[int]]:
    ((made,),) = task_of("fim", tokenizer, **options).encode([text])
    return [piece.tokens.tolist() for piece in made.pieces()]


def test_pieces_have_room_for_the_end_and_for_going_on() -> None:
    never = FIM | {"fim_rate": 0}
    assert [len(piece) for piece in encoded(TELLING, "a" * 64, **never, fim_context=64)] == [32, 34]
    task = task_of("fim", **FIM, fim_context=64)
    assert [plain(one) for one in task.encode(["a!", "!" * 100])] == [FAILS, FAILS]
    long = mock.Mock(side_effect=lambda texts, **_: [np.zeros(70 * len(text)) for text in texts])
    with mock.patch.object(TELLING, "encode", long):
        assert [len(piece) for piece in encoded(TELLING, "ab", **never, fim_context=64)] == [70, 71]


def test_the_tokens_are_the_tokenizers_own_or_named(shared_data: Path) -> None:
    cl100k = open_one(shared_data, "cl100k")
    (tokens,) = encoded(cl100k, "some text", fim_rate=1, spm_rate=0)
    assert (tokens[0], 100259 in tokens, 100260 in tokens) == (100258, True, True)
    with pytest.raises(InputError, match="fim-middle='<mid>' is not a token of"):
        encoded(cl100k, "x", fim_prefix=1, fim_middle="<mid>", fim_suffix=3)
    for options, told in (
        ({}, "[None, None, None]"),
        ({"fim_prefix": 1, "fim_middle": 2}, "[1, 2, None]"),
        ({"fim_prefix": 1, "fim_middle": 2, "fim_suffix": 2}, "[1, 2, 2]"),
    ):
        with pytest.raises(InputError) as caught:
            task_of("fim", **options)
        assert str(caught.value).startswith(
            "task fim needs three different tokens of 'bytes' before prefix, middle and suffix; "
            f"found {told}. Name them by text or id with fim_prefix, fim_middle and fim_suf"
        )


WRONG_SETTINGS: list[Any] = [
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
]


@pytest.mark.parametrize(("task", "options", "says"), WRONG_SETTINGS)
def test_settings_are_refused_with_what_is_expected(task: str, options: Any, says: str) -> None:
    with pytest.raises(InputError) as refused:
        make_settings(task, TELLING, options)
    assert str(refused.value).startswith(says)


def test_settings_are_of_the_task_that_they_name_or_wrong() -> None:
    adapter = TypeAdapter(tasks.TaskSettings)
    assert adapter.validate_python({"name": "ids", "ids_key": "x"}).ids_key == "x"
    made = make_settings("sft", TELLING, {"text_key": "text"})
    assert adapter.validate_python(made) is made
    for wrong in ({"bos": True}, 3):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    with pytest.raises(InputError, match=r"^pairs is for --task sft, not for task 'lm': why$"):
        tasks.check_takes("lm", "pairs", "why")
    tasks.check_takes("sft", "pairs", "why")


def test_a_chat_template_is_sought_where_nothing_else_writes_turns(monkeypatch: Any) -> None:
    monkeypatch.setattr(formatting, "find_template", lambda given, _: f"of {given}")

    def template(**options: Any) -> Any:
        return make_settings("sft", TELLING, options).chat_template  # type: ignore[attr-defined]

    assert template() == template(separator="") == "of None"
    assert template(chat_template="tokenizer", prompt_key="q") == "of tokenizer"
    assert template(chat_template="none", separator="|") == "of none"
    affixes = ("separator", "prompt_prefix", "completion_prefix")
    for affix in (*affixes, "prompt_key", "completion_key"):
        assert template(**{affix: "|"}) is None
