"""What tasks make of documents, token by token, by a tokenizer that tells how it was asked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.inputs.raw_records import TextPiece
from jaxdata.converter.tasks import fim, make_settings, make_task
from jaxdata.converter.tasks.base import Dropped, Encoded, Unencodable
from jaxdata.converter.tasks.fim import FimSettings, Sentinels, lay_out, middle_of
from jaxdata.converter.tasks.spans import Span, SpanEncoder, join
from jaxdata.converter.tasks.turn_truncation import Truncation
from jaxdata.errors import InputError
from jaxdata.seeds import derive
from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.bytes import BytesTokenizer

EOD, BOS = 256, 7


class Telling(BytesTokenizer):
    """Bytes; ids above 300 tell how a text was asked for. It fails on exclamation marks."""

    vocab_size = 400

    def encode(
        self, texts: Sequence[str], *, special: bool = False, continuing: bool = False
    ) -> list[np.ndarray]:
        if any("!" in text for text in texts):
            raise CannotEncode("!")
        return [np.array(ids_of(text, special, continuing), np.int64) for text in texts]


def ids_of(text: str, special: bool = False, continuing: bool = False) -> list[int]:
    told = [301] * special + [302] * continuing
    return [*told, *text.encode()] if text else []


TELLING = Telling(bos=BOS)
TEXT = st.text("ab\n!", max_size=5) | st.just("\x07a")


def task_of(name: str, **options: Any) -> Any:
    return make_task(make_settings(name, TELLING, options), TELLING)


def plain(one: Any) -> Any:
    """Tokens and mask, or why there are none."""
    if isinstance(one, Dropped):
        return one.reason
    if isinstance(one, tuple) and not isinstance(one, Encoded):
        (one,) = one
    assert one.tokens.dtype == np.uint16
    return one.tokens.tolist(), None if one.mask is None else one.mask.tolist()


FAILS = "the tokenizer cannot encode it"


def chance(seed: int, use: str, name: str, text: str) -> int:
    return derive(seed, use, name, hashlib.sha256(text.encode()).hexdigest())


@given(
    st.lists(st.tuples(TEXT, st.none() | st.tuples(st.booleans(), st.booleans())), max_size=5),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 3),
)
def test_texts_and_their_pieces_are_between_begin_and_end(
    given: list[tuple[str, Any]], bos: bool, rate: float, seed: int
) -> None:
    task = task_of("lm", bos=bos, short_rate=rate, short_length=5, seed=seed)
    documents: list[Any] = []
    expected: list[Any] = []
    for text, piece in given:
        begins, ends = piece or (True, True)
        if piece is None:
            documents += task.prepare({"text": text}).documents
        else:
            made = TextPiece(b"", begins, ends)
            documents += task.prepare_piece({"text": text}, made).documents
        tokens = [BOS] * (bos and begins) + ids_of(text, continuing=not begins) + [EOD] * ends
        if chance(seed, "short", "rate", text) < rate * 2**64:
            tokens = tokens[: 2 + chance(seed, "short", "length", text) % 3]
        reason = "a piece of a text without tokens"
        expected.append(FAILS if "!" in text else (tokens, None) if tokens else reason)
    assert [plain(one) for one in task.encode(documents)] == expected
    assert [task.texts(one) for one in documents] == [(text,) for text, _ in given]
    stored = [task.stored_text(one) for one in documents]
    assert stored == [None if rate else text for text, _ in given]


def test_texts_of_several_keys_are_joined_and_cleaned() -> None:
    settings_ = make_settings("lm", TELLING, {"text_key": "a , b.c", "text_joiner": "-"})
    task: Any = make_task(settings_, TELLING, str.upper)
    assert (task.keys, task.plain) == (("a", "b.c"), False)
    prepared = task.prepare({"a": "x", "b": {"c": "y"}})
    assert (prepared.documents, prepared.raw) == (("X-Y",), ("x-y",))
    one: Any = task_of("lm")
    assert (one.keys, one.plain, one.masked, one.joins_pieces) == (("text",), True, False, True)
    with pytest.raises(InputError, match="short_length=2: input should be greater than or equal"):
        task_of("lm", short_length=2)


SPANS = st.builds(
    Span,
    TEXT | st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, True, False]),
)


@given(st.lists(st.lists(SPANS, max_size=4), max_size=4), st.booleans(), st.booleans())
def test_spans_are_encoded_by_themselves_and_joined(
    documents: list[list[Span]], bos: bool, fit: bool
) -> None:
    def fitted(spans: Sequence[Span], parts: list[np.ndarray]) -> Any:
        assert len(spans) == len(parts)
        most = max((len(part) for part in parts), default=0)
        return Dropped("too long") if most > 5 else [part[:3] for part in parts]

    found = SpanEncoder(TELLING, bos, fitted if fit else None).encode(documents)
    expected: list[Any] = []
    for spans in documents:
        parts, failed = [], False
        for number, span in enumerate(spans):
            continuing = number > 0 if span.continues is None else span.continues
            if isinstance(span.content, int):
                parts.append([span.content])
            else:
                failed |= "!" in span.content
                parts.append(ids_of(span.content, span.special, continuing))
        if failed:
            expected.append(FAILS)
        elif fit and any(len(part) > 5 for part in parts):
            expected.append("too long")
        else:
            parts = [part[:3] for part in parts] if fit else parts
            tokens = [one for part in parts for one in part]
            losses = [s.loss for s, part in zip(spans, parts, strict=True) for _ in part]
            if bos and tokens[:1] != [BOS]:
                tokens, losses = [BOS, *tokens], [False, *losses]
            expected.append((tokens, [int(loss) for loss in losses]))
    assert [plain(one) for one in found] == expected
    assert all(isinstance(one, Unencodable) for one in found if plain(one) == FAILS)


def test_spans_that_are_none_join_to_nothing() -> None:
    assert plain(join([], [], "uint16")) == ([], [])
    wide = join([np.array([2**16])], [True], "uint32")
    assert (wide.tokens.tolist(), wide.tokens.dtype.name) == ([2**16], "uint32")


TURNS = st.lists(
    st.tuples(st.sampled_from(["", "prompt", "answer"]), st.integers(0, 5)), max_size=7
)


@given(TURNS, st.integers(0, 20), st.sampled_from(["keep_end", "keep_start"]), st.integers(1, 4))
@settings(max_examples=100)
def test_turns_lose_token_after_token(
    turns: list[tuple[Any, int]], tokens: int, keep: Any, least: int
) -> None:
    spans = [Span("", False, turn=turn) for turn, _ in turns]
    parts = [np.arange(10 * n, 10 * n + size) for n, (_, size) in enumerate(turns)]
    groups: list[list[int]] = []
    for place, (turn, _) in enumerate(turns):
        if place and turns[place - 1][0] == turn:
            groups[-1].append(place)
        else:
            groups.append([place])
    left = {places[0]: [i for place in places for i in parts[place].tolist()] for places in groups}
    excess = sum(map(len, left.values())) - tokens
    touched = set()
    for kind in ("prompt", "answer"):
        own = [places for places in groups if turns[places[0]][0] == kind]
        touched |= {place for places in own for place in places}
        lengths = {places[0]: len(left[places[0]]) for places in own}
        for first in sorted(lengths, key=lambda first: (-lengths[first], first)):
            while excess > 0 and len(left[first]) > least:
                at_start = kind == "prompt" and keep == "keep_end"
                left[first].pop(0 if at_start else -1)
                excess -= 1
    found = Truncation(tokens, keep, least)(spans, parts)
    if excess > 0:
        assert plain(found) == f"cannot be shortened to {tokens:,} tokens"
        return
    assert not isinstance(found, Dropped)
    for place, part in enumerate(found):
        kept = left.get(place, []) if place in touched else parts[place].tolist()
        assert part.tolist() == kept


def test_many_tokens_are_told_with_commas() -> None:
    found = Truncation(2_000, "keep_end", 1)([Span("", False)], [np.arange(2_001)])
    assert plain(found) == "cannot be shortened to 2,000 tokens"


WORDS = st.text("xy", max_size=3)


@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3),
    st.sampled_from(["documents", "turns"]),
    st.sampled_from(["all", "last"]),
    st.fixed_dictionaries({}, optional={
        "separator": st.just("|"), "prompt_prefix": st.just("Q"), "completion_prefix": st.just("A"),
        "eod_after_prompt": st.just(True),
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
    empty = [not (prompt and answer) for prompt, answer in pairs]
    if several == "turns" and any(empty):
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
            told += [(EOD, 0)] * ("eod_after_prompt" in affixes)
            more = affixes.get("separator"), affixes.get("completion_prefix")
            told += [(one, 0) for one in more if one]
            told += [(answer, int(loss)), (EOD, int(loss))]
        ((tokens, mask),) = [plain(one) for one in task.encode([document])]
        kept = [(i, loss) for i, loss in zip(tokens, mask, strict=True) if i not in (301, 302)]
        flat = [(i, loss) for one, loss in told for i in (one.encode() if one != EOD else [EOD])]
        assert kept == flat
        texts = [one for one, _ in told if one != EOD]
        assert task.texts(document) == texts


def test_what_is_a_conversation_is_found_where_no_key_is_named() -> None:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    plain_pair = {"prompt": "p", "completion": "c"}
    task = task_of("sft", separator="|")
    assert task.keys is None

    def texts(made: Any, record: dict[str, Any]) -> list[str]:
        return [text for one in made.prepare(record).documents for text in made.texts(one)]

    assert texts(task, plain_pair) == ["p", "|", "c"]
    assert texts(task, plain_pair | {"messages": talk}) == ["q", "|", "a"]
    assert texts(task, plain_pair | {"conversations": talk}) == ["q", "|", "a"]
    assert texts(task_of("sft", separator="|", prompt_key="prompt"),
                 plain_pair | {"messages": talk}) == ["p", "|", "c"]  # fmt: skip
    assert texts(task_of("sft", separator="|", completion_key="completion"),
                 plain_pair | {"messages": talk}) == ["p", "|", "c"]  # fmt: skip
    named = task_of("sft", separator="|", messages_key="talk")
    assert texts(named, plain_pair | {"talk": talk}) == ["q", "|", "a"]
    assert named.prepare({"talk": talk}).raw == ["q", "a"]
    with pytest.raises(Dropped, match=r"^no answer to train on$"):
        task.prepare({"messages": talk[:1]})
    with pytest.raises(BadRecord, match=r"^a conversation, and neither a chat template nor pref"):
        task_of("sft").prepare({"messages": talk})
    cleaned: Any = make_task(make_settings("sft", TELLING, {}), TELLING, str.upper)
    assert texts(cleaned, plain_pair) == ["P", "C"]
    assert task_of("sft", prompt_key="a,b", completion_key="c").keys == ("a", "b", "c")


def test_a_document_is_shortened_with_room_for_its_begin() -> None:
    record = {"prompt": "xxxxx", "completion": "yy"}
    for bos in (False, True):
        task = task_of("sft", truncate_to=6, bos=bos)
        ((tokens, mask),) = [plain(one) for one in task.encode(task.prepare(record).documents)]
        assert len(tokens) == len(mask) == 6
        assert tokens[-4:] == [302, ord("y"), ord("y"), EOD]
        assert (tokens[0] == BOS) == bos


CHOSEN = st.text("ab\u00e9 ", max_size=9)


@given(
    CHOSEN, st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 5)
)
def test_a_middle_is_drawn_by_content_and_seed(
    text: str, rate: float, spm: float, seed: int
) -> None:
    found = middle_of(text, FimSettings(fim_rate=rate, spm_rate=spm, seed=seed))
    if chance(seed, "fim", "rate", text) >= rate * 2**64:
        assert found is None
        return
    edges = sorted(
        chance(seed, "fim", name, text) % (len(text) + 1) for name in ("one edge", "other edge")
    )
    assert found == (chance(seed, "fim", "spm", text) < spm * 2**64, *edges)


@pytest.mark.parametrize("continues", [False, True])
def test_the_order_of_the_parts(continues: bool) -> None:
    parts, ids = ("p", "m", "s"), Sentinels(1, 2, 3)
    pre, mid, suf = (Span(i, True) for i in (1, 2, 3))
    prefix, middle, suffix = Span("p", True, continues=continues), Span("m", True), Span("s", True)
    psm = lay_out(parts, False, ids, continues=continues)
    assert psm == [pre, prefix, suf, suffix, mid, middle]
    spm = lay_out(parts, True, ids, continues=continues)
    assert spm == [pre, suf, suffix, mid, prefix, middle]


FIM = {"fim_prefix": 1, "fim_middle": 2, "fim_suffix": 3}


@given(st.text("ab\n", min_size=20, max_size=300), st.sampled_from([64, 65, 100, 0]), st.booleans())
@settings(max_examples=60)
def test_pieces_of_a_long_document_fit_the_context(text: str, context: int, bos: bool) -> None:
    task = task_of("fim", **FIM, fim_context=context, fim_rate=1, bos=bos)
    whole_task = task_of("fim", **FIM, fim_context=0, fim_rate=1, bos=bos)
    [(made,)] = task.encode([text])
    [(whole,)] = whole_task.encode([text])
    assert (whole.cuts, whole.mask) == ((), None)
    if not context or len(whole.tokens) <= context:
        assert (made.tokens.tolist(), made.cuts) == (whole.tokens.tolist(), ())
        return
    pieces = [piece.tolist() for piece in np.split(made.tokens, made.cuts)]
    assert len(pieces) > 1
    assert pieces[-1].pop() == EOD
    joined = ""
    for number, piece in enumerate(pieces):
        assert len(piece) <= context - 1
        assert (piece[0] == BOS) == bos
        piece = piece[bos:]
        assert piece[0] == 1
        inner = [i for i in piece if i != 301]
        mid, suf = inner.index(2), inner.index(3)
        if suf == 1:
            told = inner[mid + 1 :] + inner[2:mid]
        else:
            told = inner[1:suf] + inner[mid + 1 :] + inner[suf + 1 : mid]
        joined += bytes(i for i in told if i < 256).decode()
        assert number == 0 or 302 in inner
    assert joined == text


def test_the_last_piece_leaves_room_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pieces(text: str, tokens: int, room: int, encode: Any) -> list[Any]:
        asked.append((text, tokens, room))
        return encode([text[:30], text[30:]], [False, True])

    monkeypatch.setattr(fim, "fitting_pieces", pieces)
    task = task_of("fim", **FIM, fim_context=64, fim_rate=0)
    [(made,), (short,), (fits,)] = task.encode(["a" * 64, "a", "a" * 63])
    assert asked == [("a" * 64, 65, 63)]
    assert made.tokens.tolist() == [97] * 30 + [302] + [97] * 34 + [EOD]
    assert made.cuts == (30,)
    assert (short.cuts, fits.cuts) == ((), ())
    gone = Dropped("a piece is left out")
    monkeypatch.setattr(fim, "fitting_pieces", lambda *_: [made, gone])
    assert task.encode(["a" * 64]) == [gone]


def test_a_document_that_cannot_be_encoded_is_left_out_whole() -> None:
    task = task_of("fim", **FIM, fim_context=64)
    assert [plain(one) for one in task.encode(["a!", "!" * 100])] == [FAILS, FAILS]


def test_a_context_has_room_for_a_piece() -> None:
    for context in (1, 63):
        with pytest.raises(InputError, match="expected 64 tokens or more, or 0 to rearrange docum"):
            task_of("fim", **FIM, fim_context=context)
    assert task_of("fim", **FIM)._settings.fim_context == 2_048
    assert FimSettings().fim_context == 0
    with pytest.raises(InputError) as caught:
        task_of("fim")
    assert str(caught.value) == (
        "task fim needs three different tokens of 'bytes' before prefix, middle and suffix; "
        "found [None, None, None]. Name them by text or id with --fim-prefix, --fim-middle and "
        "--fim-suffix; --add-special adds some to a vocabulary"
    )
    with pytest.raises(InputError, match=r"found \[1, 2, None\]"):
        task_of("fim", fim_prefix=1, fim_middle=2)
    with pytest.raises(InputError, match=r"found \[1, 2, 2\]"):
        task_of("fim", fim_prefix=1, fim_middle=2, fim_suffix=2)
