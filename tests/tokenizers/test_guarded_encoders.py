"""An encoder under guard: samples are compared, and doubtful texts left to the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.encoders import (
    EncoderDiffers,
    EncodingSummary,
    attach,
    choice,
    library_of,
)
from jaxdata.tokenizers.encoders.code_points import CodePointSet, ranges_of
from jaxdata.tokenizers.encoders.guarded import GuardedEncoder, drawn, passage
from jaxdata.tokenizers.encoders.tiktoken_core import TiktokenEncoder
from tests.tokenizers.conftest import guarded, same
from tests.tokenizers.made import double, settings, tokenizer
from tests.tokenizers.test_tokenizers import open_one


def guard_of(wrong: Callable[[str], bool], **options: Any) -> GuardedEncoder:
    made = tokenizer(settings())
    encoder = double(wrong)(made)
    nothing = CodePointSet([])

    def library(texts: Sequence[str]) -> list[np.ndarray]:
        return made.encode_texts(texts, False)

    return GuardedEncoder(encoder, "double 1.0", library, nothing, **options)


def test_samples_are_drawn_by_content_and_compared() -> None:
    some = [f"document {n} of many" for n in range(5_000)]
    numbers = drawn(some, some=False)
    assert 5 < len(numbers) < 50
    assert [some[n] for n in numbers] == [t for t in some if drawn([t], some=False)]
    wrong = some[numbers[0]]
    with pytest.raises(
        EncoderDiffers, match=r"double 1\.0 gives other ids than the library for 'doc"
    ):
        guard_of(lambda text: text == wrong).encode(some)
    missed = next(text for text in some[1:] if not drawn([text], some=False))
    guard = guard_of(lambda text: text == missed)
    guard.encode(some)
    assert guard.counts["both texts"] >= len(numbers)
    with pytest.raises(EncoderDiffers):
        guard_of(lambda text: text == missed, everything=True).encode(some)


def test_the_first_texts_of_a_unit_are_compared_in_any_case() -> None:
    text = next(t for n in range(99) if not drawn([t := f"text {n}"], some=False))
    guard = guard_of(lambda text: True)
    with pytest.raises(EncoderDiffers):
        guard.encode([text])
    fine = guard_of(lambda text: False)
    for _ in range(3):
        fine.encode([text])
    assert fine.counts["both texts"] == 1
    fine.begin()
    fine.encode([text])
    assert fine.counts["both texts"] == 1


def test_of_long_texts_a_passage_is_compared() -> None:
    long = "".join(f"{n} words, " for n in range(200_000))
    assert drawn([long], some=False) == [0]
    part = passage(long)
    assert len(part) == 4_096
    assert part in long
    with pytest.raises(EncoderDiffers) as caught:
        guard_of(lambda text: text == part).encode([long])
    assert caught.value.text == part
    fine = guard_of(lambda _: False)
    fine.encode([long, "short"])
    assert (fine.counts["both texts"], fine.counts["cut texts"]) == (1, 1)
    whole = guard_of(lambda _: False, everything=True)
    whole.encode([long, "short"])
    assert (whole.counts["both texts"], whole.counts["cut texts"]) == (2, 0)


def test_texts_that_an_encoder_fails_on_go_to_the_library() -> None:
    made = tokenizer(settings())
    some = ["a", " " * 600_000, "b", "\n\t " * 300_000]
    guard = GuardedEncoder(
        TiktokenEncoder(made), "t", lambda t: made.encode_texts(t, False), CodePointSet([])
    )
    for one, other in zip(guard.encode(some), made.encode_texts(some, False), strict=True):
        assert np.array_equal(one, other)
    counts = guard.counts
    assert (counts["all texts"], counts["own texts"], counts["left texts"]) == (4, 2, 2)
    assert counts["all characters"] == sum(map(len, some))


@pytest.mark.usefixtures("few")
def test_a_text_that_the_library_fails_on_is_no_encoders(shared_data: Path) -> None:
    made = guarded(open_one(shared_data, "cl100k"), "fast")
    with pytest.raises(CannotEncode):
        made.encode(["fine", " " * 10**6 + "a"])
    same(made, [" " * 10_000 + "a"])


def test_sets_of_code_points_find_their_texts() -> None:
    wanted = CodePointSet([(0xE9, 0xEA), (0x10FFFF, 0x10FFFF)])
    some = ["e", "\u00e9", "\u00eb", "x\U0010ffff", "\ud800", "\u00ea"]
    assert wanted.found_in(some) == [1, 3, 4, 5]
    assert CodePointSet([(97, 97)]).found_in(["b", "a"]) == [1]
    assert ranges_of([]) == []


@given(st.sets(st.integers(0, 40)))
def test_ranges_hold_what_they_are_made_of(codes: set[int]) -> None:
    held = {code for first, last in ranges_of(codes) for code in range(first, last + 1)}
    assert held == codes


def test_libraries_are_named_with_their_unicode() -> None:
    assert library_of("bytes") is None
    for kind, name in (("hf", "tokenizers"), ("tiktoken", "tiktoken"), ("sentencepiece", "sent")):
        named = library_of(kind)
        assert named
        assert named.startswith(name)
        assert ("Unicode 1" in named) == (kind != "sentencepiece")


def test_chat_templates_special_tokens_are_the_librarys() -> None:
    made = tokenizer(settings())
    attach(made, choice.Choice("tiktoken", TiktokenEncoder.version()))
    assert made.guard
    text = "a<|endoftext|>b"
    assert made.eod_id in made.encode([text], special=True)[0]
    assert made.eod_id not in made.encode([text])[0]


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
