"""Texts, and texts to fill in the middle of: token by token, by a tokenizer that tells."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.base.seeds import derive
from jaxdata.converter.inputs.parsing import BadRecord, TextPiece
from jaxdata.converter.tasks import fim
from jaxdata.converter.tasks.base import (
    Dropped,
    Encoded,
    Span,
    SpanEncoder,
    Unencodable,
    encode,
    join,
)
from jaxdata.converter.tasks.fim import (
    FimSettings,
    Sentinels,
    divide,
    fitting_pieces,
    lay_out,
    middle_of,
)
from jaxdata.converter.tasks.registry import make_settings, make_task
from jaxdata.tokenizers import Tokenizer
from tests.converter.tasks.telling import BOS, EOD, FAILS, TELLING, ids_of, plain, task_of
from tests.tokenizers.test_tokenizers import open_one

TEXT = st.text("ab\n!", max_size=5) | st.just("\x07a")


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
    for record in ({"a": None, "b": {"c": "y"}}, {"b": {"c": "y"}}):
        assert task.prepare(record).documents == ("Y",)
    for record, reason in (
        ({"a": None}, "no key 'b.c'"),
        ({"a": None, "b": {"c": None}}, "are null"),
    ):
        with pytest.raises(BadRecord, match=reason):
            task.prepare(record)
    one: Any = task_of("lm")
    assert (one.keys, one.plain, one.masked, one.joins_pieces) == (("text",), True, False, True)
    assert one.strings
    with pytest.raises(InputError, match="short_length=2: expected at least 3"):
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


@given(st.lists(st.text("ab!\u00e9", max_size=9)), st.booleans(), st.booleans(), st.integers(1, 9))
def test_long_texts_are_encoded_in_parts_that_go_on(
    texts: list[str], special: bool, continuing: bool, long: int
) -> None:
    found = encode(TELLING, texts, special=special, continuing=continuing, long=long)
    expected: list[Any] = []
    for text in texts:
        parts = [text] if special else [text[at : at + long] for at in range(0, len(text), long)]
        told = [
            ids_of(part, special, continuing or number > 0) for number, part in enumerate(parts)
        ]
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
    parts = divide(text, count)
    assert parts == [text[edges[n] : edges[n + 1]] for n in range(count)]
    assert divide(text, len(text) + 1) == [*text]


@given(
    st.text("ab", min_size=1, max_size=200), st.integers(1, 40), st.integers(1, 5), st.booleans()
)
def test_pieces_are_cut_again_until_they_fit(
    text: str, room: int, each: int, continues: bool
) -> None:
    """`b` has so many tokens, `a` one; what is asked for is divided as the text's tokens say."""
    asked: list[tuple[list[str], list[bool]]] = []

    def size(part: str) -> int:
        return sum(each if letter == "b" else 1 for letter in part)

    def encode_parts(parts: Sequence[str], later: Sequence[bool]) -> list[Encoded]:
        asked.append(([*parts], [*later]))
        return [Encoded(np.zeros(size(part))) for part in parts]

    def cut(text: str, goes_on: bool) -> None:
        parts = divide(text, max(2, ceil(Fraction(16 * size(text), 15 * room))))
        expected.append((parts, [goes_on, *[True] * (len(parts) - 1)]))
        for number, part in enumerate(parts):
            if size(part) > room and len(part) > 1:
                cut(part, goes_on or number > 0)
            else:
                sizes.append(size(part))

    expected: list[tuple[list[str], list[bool]]] = []
    sizes: list[int] = []
    cut(text, continues)
    found = fitting_pieces(text, size(text), room, encode_parts, continues=continues)
    assert [len(one.tokens) for one in found if isinstance(one, Encoded)] == sizes
    assert asked == expected


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_long_texts_have_the_librarys_tokens(shared_data: Path, name: str) -> None:
    with gzip.open(shared_data / "books.jsonl.gz") as books:
        texts = [json.loads(next(books))["text"][:60_000], "short", ""]
    tokenizer = open_one(shared_data, name)
    whole = tokenizer.encode(texts)
    for one, other in zip(encode(tokenizer, texts, long=7_000), whole, strict=True):
        assert not isinstance(one, Dropped)
        assert np.array_equal(one, other)


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


def test_golden_draws() -> None:
    texts = ["", "a", "def f():\n    return 1\n", "größe 大きさ"]
    found = [middle_of(text, FimSettings(fim_rate=1)) for text in texts]
    assert found == [(False, 0, 0), (False, 0, 1), (True, 1, 15), (True, 2, 3)]


FIM = {"fim_prefix": 1, "fim_middle": 2, "fim_suffix": 3}


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


@given(
    st.text("ab\né", min_size=20, max_size=300),
    st.sampled_from([64, 65, 100, 0]),
    st.sampled_from([0.5, 1.0]),
    st.booleans(),
)
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
    assert len(pieces) > 1
    assert pieces[-1].pop() == EOD
    for number, piece in enumerate(pieces):
        assert len(piece) <= context - 1
        assert (piece[0] == BOS) == bos
        if rate == 1:
            assert [piece.count(i) for i in (1, 2, 3)] == [1, 1, 1]
        assert number == 0 or 302 in piece
    assert "".join(in_order(piece[bos:]) for piece in pieces) == text


def test_a_document_that_fits_is_whole_and_others_are_cut_at_line_ends() -> None:
    code = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(400))

    def pieces(text: str, **options: Any) -> list[list[int]]:
        ((made,),) = task_of("fim", **FIM | {"fim_rate": 1} | options).encode([text])
        return [piece.tokens.tolist() for piece in made.pieces()]

    (whole,) = pieces(code[:500], fim_context=0)
    assert pieces(code[:500], fim_context=len(whole)) == [whole]
    assert len(pieces(code[:500], fim_context=len(whole) - 1)) == 2
    assert pieces(code) == pieces(code, fim_context=2_048), "the default"
    found = pieces(code, fim_context=1_000, fim_rate=0)
    assert all(piece[-1] == ord("\n") for piece in found[:-1])
    assert len(found) <= 1.25 * len(code) / 1_000


def encoded(tokenizer: Tokenizer, text: str, **options: Any) -> list[list[int]]:
    task = make_task(make_settings("fim", tokenizer, options), tokenizer)
    ((made,),) = task.encode([text])
    return [piece.tokens.tolist() for piece in made.pieces()]


def test_a_piece_of_one_character_is_not_cut_further(shared_data: Path) -> None:
    t5 = open_one(shared_data, "t5")  # reads each ligature as 18 characters
    found = encoded(t5, "\ufdfa" * 99, **FIM_OF_T5, fim_context=64, fim_rate=1)
    assert len(found) <= 99
    assert max(map(len, found)) <= 64


FIM_OF_T5 = {"fim_prefix": 4, "fim_middle": 5, "fim_suffix": 6}


@pytest.mark.parametrize("spm_rate", [0, 1])
def test_sentencepiece_adds_no_space_to_parts_and_pieces(shared_data: Path, spm_rate: int) -> None:
    mistral = open_one(shared_data, "mistral")
    named = {"fim_prefix": "<s>", "fim_middle": "</s>", "fim_suffix": "<unk>"}
    mistral.eod_id = 5
    code = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(200))
    found = encoded(mistral, code, **named, fim_context=256, fim_rate=1, spm_rate=spm_rate)
    assert len(found) > 10
    text: list[int] = []
    for piece in found:
        tokens = [i for i in piece if i != 5]
        mid, suf = tokens.index(2), tokens.index(0)
        text += [] if spm_rate else tokens[1:suf]
        text += tokens[mid + 1 :] + tokens[suf + 1 : mid]
    assert mistral.decode(text) == code


def test_the_tokens_are_the_tokenizers_own_or_named(shared_data: Path) -> None:
    cl100k = open_one(shared_data, "cl100k")
    (tokens,) = encoded(cl100k, "some text", fim_rate=1, spm_rate=0)
    assert (tokens[0], 100259 in tokens, 100260 in tokens) == (100258, True, True)
    with pytest.raises(InputError, match="fim-middle='<mid>' is not a token of"):
        encoded(cl100k, "x", fim_prefix=1, fim_middle="<mid>", fim_suffix=3)


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
    assert FimSettings().fim_context == 2_048
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
