"""An encoder under guard: samples are compared, and doubtful texts left to the library."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.encoders import (
    EncoderDiffers,
    EncodingSummary,
    attach,
    choice,
    guarded,
    library_of,
)
from jaxdata.tokenizers.encoders.base import CodePointSet
from jaxdata.tokenizers.encoders.fast import FastokensEncoder
from jaxdata.tokenizers.encoders.guarded import GuardedEncoder, drawn, passage
from tests.tokenizers import made


def test_libraries_are_named_with_their_unicode() -> None:
    assert library_of("bytes") is None
    for kind, name in (("hf", "tokenizers"), ("tiktoken", "tiktoken"), ("sentencepiece", "sent")):
        named = library_of(kind)
        assert named
        assert named.startswith(name)
        assert ("Unicode 1" in named) == (kind != "sentencepiece")


def test_chat_templates_special_tokens_are_the_librarys() -> None:
    tokenizer, text = made.tokenizer(made.settings()), "a<|endoftext|>b"
    attach(tokenizer, choice.Choice("fast", FastokensEncoder.version()))
    assert tokenizer.guard
    assert tokenizer.eod_id in tokenizer.encode([text], special=True)[0]
    assert tokenizer.eod_id not in tokenizer.encode([text])[0]


@pytest.mark.parametrize(
    ("texts", "cut", "milliseconds", "line"),
    [
        (2, 0, 9, "encoded by words 1; 2 of 9,000 texts compared, all equal"),
        (
            300,
            0,
            100,
            "encoded by words 1, 5.0 times as fast as theirs 2; 300 of 9,000 texts compared, all "
            "equal: with 95 % confidence fewer than 1 in 100 differ",
        ),
        (
            9_000,
            120,
            9,
            "encoded by words 1; 9,000 of 9,000 texts compared, 120 of them by 4,096 of their "
            "characters, all equal: with 95 % confidence fewer than 1 in 3,000 of what is compared "
            "so differ",
        ),
        (9_000, 0, 9, "encoded by words 1; 9,000 of 9,000 texts compared, all equal"),
    ],
)
def test_a_summary_states_no_more_than_was_compared(
    texts: int, cut: int, milliseconds: int, line: str
) -> None:
    counts = {"all texts": 9_000, "own characters": 50_000, "own microseconds": 1_000_000}
    both = {"both texts": texts, "cut texts": cut, "both characters": 10 * milliseconds}
    of_words = counts | both | {"both microseconds": 1_000 * milliseconds}
    assert [*EncodingSummary(library="theirs 2", counts={"words 1": of_words}).lines()] == [line]


def mark(text: str) -> int:
    middle = len(text) // 2
    known = f"{len(text)} {text[:64]}{text[middle : middle + 64]}{text[-64:]}"
    return zlib.crc32(known.encode("utf-8", "surrogatepass"))


LONG = [f"{n} " * 3_000 * (1 + n % 7) for n in range(40)]
SHORT = [f"text {n}" for n in range(400)]


@given(st.lists(st.sampled_from([*LONG, *SHORT, "", "\ud800"]), max_size=9), st.booleans())
def test_texts_are_drawn_by_their_mark_and_longer_ones_more_often(
    texts: list[str], some: bool
) -> None:
    marks = [mark(text) for text in texts]
    expected = [
        n
        for n, text in enumerate(texts)
        if marks[n] % 256 < max(1, len(text) // 4_096) or (some and marks[n] == min(marks))
    ]
    assert drawn(texts, some) == expected


def test_passages_lie_anywhere_in_a_long_text() -> None:
    for text in ("", "a" * 4_096):
        assert passage(text) is text
    places = set()
    for number in range(300):
        text = f"{number:05}" + "".join(f"{n:05}" for n in range(2_000))
        found = passage(text)
        assert len(found) == 4_096
        start = mark(text) // 256 % (len(text) - 4_096)
        assert found == text[start : start + 4_096]
        places.add(start * 10 // (len(text) - 4_096))
    assert places == {*range(10)}


def test_the_beginning_of_a_text_is_shown_escaped() -> None:
    assert guarded.shown("é\n") == r"'\xe9\n'"
    assert guarded.shown("a" * 64) == repr("a" * 64)
    assert guarded.shown("a" * 65) == repr("a" * 64) + "..."
    assert str(EncoderDiffers("fast 1", "a")) == ("fast 1 gives other ids than the library for 'a'")


def ids_of(texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array([*map(ord, text)], np.uint32) for text in texts]


class Failing:
    """Fails on texts with an exclamation mark."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any("!" in text for text in texts):
            raise CannotEncode("!")
        return ids_of(texts)


def guard_of(everything: bool = False) -> GuardedEncoder:
    suspects = CodePointSet([(ord("?"), ord("?"))])
    return GuardedEncoder(Failing(), "fast 1", ids_of, suspects, everything=everything)  # type: ignore[arg-type]


TAKEN = st.lists(st.sampled_from([*SHORT[:40], *LONG[:9], "!", "a!", "?", "?!", "b?"]), max_size=6)


@given(st.lists(st.lists(TAKEN, max_size=3), max_size=2), st.booleans())
@settings(max_examples=60)
def test_every_text_of_a_unit_is_counted_by_who_encoded_it(
    units: list[list[list[str]]], everything: bool
) -> None:
    guard = guard_of(everything)

    def count(what: str, texts: list[str]) -> None:
        counts[f"{what} texts"] += len(texts)
        counts[f"{what} characters"] += sum(map(len, texts))

    for batches in units:
        guard.begin()
        assert guard.counts == Counter()
        counts: Counter[str] = Counter()
        first = True
        for texts in batches:
            found = guard.encode(texts)
            assert [ids.tolist() for ids in found] == [[*map(ord, text)] for text in texts]
            count("all", texts)
            plain = [text for text in texts if "?" not in text]
            count("left", [text for text in texts if "?" in text or "!" in text])
            fails = any("!" in text for text in plain)
            for some in [[text] for text in plain] if fails else [plain]:
                if any("!" in text for text in some):
                    continue
                count("own", some)
                chosen = some if everything else [some[n] for n in drawn(some, first)]
                first = first and not chosen
                count("both", chosen if everything else [text[:4_096] for text in chosen])
                cut = 0 if everything else sum(len(text) > 4_096 for text in chosen)
                counts["cut texts"] += cut
        timed = {name: n for name, n in guard.counts.items() if name.endswith("microseconds")}
        assert timed.keys() <= {"own microseconds", "both microseconds"}
        assert all(n >= 0 for n in timed.values())
        assert +Counter({k: n for k, n in guard.counts.items() if k not in timed}) == +counts


def test_time_is_counted_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1_000, 3_000_999, 5_000_000, 9_000_000])
    monkeypatch.setattr(guarded.time, "thread_time_ns", lambda: next(now))
    guard = guard_of(everything=True)
    guard.encode(["a"])
    assert guard.counts["own microseconds"] == 2_999
    assert guard.counts["both microseconds"] == 4_000


@pytest.mark.parametrize("before", [0, 1, 62_499, 62_500, 100_000])
def test_runs_of_spaces_that_a_library_cannot_take_are_left_to_it(before: int) -> None:
    for space in (" ", "\n"):
        guard = guard_of()
        guard.encode(["a" * before + space * 500_000, "short"])
        assert (guard.counts["left texts"], guard.counts["own texts"]) == (1, 1)


def test_shorter_runs_and_shorter_texts_are_not_left() -> None:
    assert [*guarded._with_long_runs([" " * 499_999, "a" * 10**6, ""])] == []
    assert [*guarded._with_long_runs(["a" * 200_000 + " " * 300_000 + "a" * 10**6])] == []
    assert [*guarded._with_long_runs(["", " " * 500_000])] == [1]


def test_a_difference_in_what_is_compared_is_an_error() -> None:
    class Wrong(Failing):
        def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
            return [ids[:-1] if len(ids) in (1, 4_096) else ids for ids in ids_of(texts)]

    def encode(text: str, **options: bool) -> list[int]:
        guard = GuardedEncoder(Wrong(), "fast 1", ids_of, CodePointSet([]), **options)  # type: ignore[arg-type]
        guard.encode(["fine"])
        return guard.encode([text])[0].tolist()

    long = next(text for n in range(999) if drawn([text := f"{n} " * 20_000], False))
    missed, found = (
        next(one for one in map(chr, range(65, 10_000)) if bool(drawn([one], False)) is is_drawn)
        for is_drawn in (False, True)
    )
    assert encode(missed) == [], "it is not drawn"
    assert encode(long, everything=True) == [*map(ord, long)], "whole, it is right"
    for text, options in ((long, {}), (found, {}), (missed, {"everything": True})):
        with pytest.raises(EncoderDiffers) as caught:
            encode(text, **options)
        assert (caught.value.encoder, caught.value.text) == ("fast 1", passage(text))
