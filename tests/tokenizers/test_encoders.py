"""Encoders give the library's ids, or are refused with a reason."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.converter import texts
from jaxdata.errors import InputError
from jaxdata.tokenizers import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders import (
    Encoder,
    EncoderDiffers,
    Refused,
    attach,
    choice,
    choose,
    library_of,
    trial,
    verdicts,
)
from jaxdata.tokenizers.encoders.byte_level import byte_level_bpe
from jaxdata.tokenizers.encoders.code_points import CodePointSet, ranges_of
from jaxdata.tokenizers.encoders.fastokens_core import FastokensEncoder
from jaxdata.tokenizers.encoders.guarded import GuardedEncoder, drawn, passage
from jaxdata.tokenizers.encoders.merges import check_merges
from jaxdata.tokenizers.encoders.naughty import naughty_texts
from jaxdata.tokenizers.encoders.tiktoken_core import TiktokenEncoder
from tests.tokenizers.made import BYTE_LEVEL, FAMILIES, double, of_merges, settings, tokenizer
from tests.tokenizers.test_tokenizers import open_one

FUZZED = int(os.environ.get("JAXDATA_TEST_FUZZED", "2000"))
EVERY = int(os.environ.get("JAXDATA_TEST_EVERY_DOCUMENT", "150"))
ENCODERS = [kind.name for kind in choice.ENCODERS if "hf" in kind.kinds]
KNOWN = [*range(128), *range(0xA0, 0x250), *range(0x300, 0x345), *range(0x4E00, 0x4E40), 0x1F600]
KNOWN += [*range(0x3040, 0x3100), *range(0x200B, 0x2010)]
KNOWN = sorted({*KNOWN, *map(ord, "".join(naughty_texts()))})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of some hundred code points instead of all."""
    monkeypatch.setattr(trial, "every_character", lambda: "".join(map(chr, KNOWN)))


def guarded(made: Tokenizer, name: str) -> Tokenizer:
    if name == "fast":
        pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    attach(made, choose(made, name, text_bytes=0))  # type: ignore[arg-type]
    assert made.guard
    return made


def fuzzed(count: int) -> Iterator[str]:
    draw = random.Random(7)
    for text in naughty_texts(["<tool>", "<tool>er", "  "], count):
        yield text + "".join(chr(draw.choice(KNOWN)) for _ in range(draw.randrange(4)))


def same(made: Tokenizer, some: list[str]) -> None:
    """Its encoder gives the library's ids; the library did not encode them in its place."""
    assert made.guard
    for text, one, other in zip(
        some, made.encode(some), made.encode_texts(some, False), strict=True
    ):
        assert np.array_equal(one, other), text
        assert one.dtype == np.uint32
    assert made.guard.counts["own texts"] > 0.5 * len(some)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_fuzzed_texts_are_the_librarys(family: str, name: str) -> None:
    same(guarded(tokenizer(settings(family)), name), list(fuzzed(FUZZED)))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("spec", "name"),
    [*product(["gpt2-hf", "neox", "gpt2-files"], ENCODERS), ("gpt2", "fast"), ("cl100k", "fast")],
)
def test_ids_of_real_documents_are_the_librarys(shared_data: Path, spec: str, name: str) -> None:
    made = guarded(open_one(shared_data, spec), name)
    files = [str(path) for path in shared_data.glob("[cmsw]*.*") if path.suffix != ".md"]
    some = [text for n, text in enumerate(texts(files)) if n % EVERY == 0]
    assert len(some) > 100
    same(made, some)


def test_accents_that_the_librarys_older_tables_lack_are_found_by_the_trial(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library normalises by tables of an older Unicode."""
    accents = [*range(0x7EB, 0x900), *range(0x1AB0, 0x1AD0)]
    monkeypatch.setattr(trial, "every_character", lambda: "".join(map(chr, KNOWN + accents)))
    made = guarded(open_one(shared_data, "neox"), "tiktoken")
    assert made.guard
    later = ["a\u0301\u0898b", "a\u0315\u1ac1\u0300", "\u0899\u0301"]
    for text in later:
        (ids,) = made.encode([text])
        assert np.array_equal(ids, made.encode_texts([text], False)[0])
    assert made.guard.counts["left texts"] == len(later)
    assert made.encode(["a\u0301, \u4e2d\u6587"])
    assert made.guard.counts["own texts"] == 1


@given(data=st.data())
def test_merges_that_are_admitted_are_those_of_ranks(data: st.DataObject) -> None:
    """Random merges: where the check passes, tiktoken's core makes what the library makes."""
    known, merges = ["a", "b", "c"], []
    for _ in range(data.draw(st.integers(0, 8))):
        pair = data.draw(st.tuples(st.sampled_from(known), st.sampled_from(known)))
        if pair[0] + pair[1] not in known:
            merges.append(pair)
            known.append(pair[0] + pair[1])
    made = of_merges(merges)
    try:
        check_merges(byte_level_bpe(made.settings()))
    except Refused:
        return
    some = [data.draw(st.text("abc", max_size=30)) for _ in range(5)]
    for one, other in zip(TiktokenEncoder(made).encode(some), made.encode(some), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.usefixtures("few")
def test_a_letter_that_only_the_library_takes_for_an_s_is_found_by_the_trial() -> None:
    """fastokens' rule of o200k knows no contraction with U+017F; tokens show it after it only."""
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    made = settings("o200k")
    merged = of_merges([("t", "e"), ("'", "t")]).settings()
    made = tokenizer(made | {"model": merged["model"], "added_tokens": merged["added_tokens"]})
    encoder, text = FastokensEncoder(made), "t'\u017f'te"
    assert encoder.encode([text])[0].tolist() != made.encode([text])[0].tolist()
    found = choose(made, "fast", text_bytes=0)
    assert CodePointSet(found.left).found_in([text, "t'\u017et"]) == [0]


def test_merges_that_ranks_do_otherwise_are_refused() -> None:
    made = of_merges([("a", "b"), ("b", "c"), ("a", "bc")])
    assert TiktokenEncoder(made).encode(["abc"])[0].tolist() != made.encode(["abc"])[0].tolist()
    with pytest.raises(Refused, match="merges do not make the token b'abc' of two earlier ones"):
        TiktokenEncoder.check(made)
    both = of_merges([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])
    TiktokenEncoder.check(both)
    apart = of_merges([("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")])
    with pytest.raises(Refused, match="the merges that make b'abc' lie apart"):
        TiktokenEncoder.check(apart)


def changed(path: str, value: Any) -> dict[str, Any]:
    made = settings()
    *above, last = path.split("/")
    inner = made
    for name in above:
        inner = inner[int(name) if name.isdecimal() else name]
    inner[last] = value
    return made


BYTES = {**BYTE_LEVEL, "use_regex": False}
DIGITS_OF_3 = [{"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated"}]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model/dropout", 0.1, "its model has dropout"),
        ("model/byte_fallback", True, "its model has byte_fallback"),
        ("model/end_of_word_suffix", "</w>", "its model has end_of_word_suffix"),
        ("model/type", "Unigram", "its model is 'Unigram'"),
        ("normalizer", {"type": "Lowercase"}, "its normalizer is 'Lowercase'"),
        ("pre_tokenizer", {**BYTE_LEVEL, "add_prefix_space": True}, "puts a space before a text"),
        ("pre_tokenizer", {"type": "Whitespace"}, "last step of splitting is 'Whitespace'"),
        ("pre_tokenizer", None, "last step of splitting is None"),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [*DIGITS_OF_3 * 2, BYTES],
            },
            r"sequence of splits \(Split, Split, ByteLevel\) is not proven to be one",
        ),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [*DIGITS_OF_3, BYTES],
            },
            "its splitting rule is not known",
        ),
        ("added_tokens/1/lstrip", True, "the added token '  ' has lstrip"),
        ("added_tokens/3/single_word", True, "the added token '<tool>' has single_word"),
    ],
)
def test_a_part_that_is_not_known_is_refused(path: str, value: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        byte_level_bpe(changed(path, value))


def test_tokens_that_no_merge_makes_are_refused_as_whole_words() -> None:
    made = settings(ignore_merges=True)
    made["model"]["vocab"]["zzzz"] = 5_000
    with pytest.raises(Refused, match="takes whole words for tokens, 1 of which no merge makes"):
        byte_level_bpe(made)
    del made["model"]["vocab"]["zzzz"], made["model"]["vocab"]["A"]
    with pytest.raises(Refused, match="its vocabulary lacks 1 of the 256 bytes"):
        byte_level_bpe(made)


def test_added_tokens_not_in_nfc_are_refused() -> None:
    made = settings("neox")
    made["added_tokens"][1]["content"] = "e\u0301"
    with pytest.raises(Refused, match=r"the added token .* is not in NFC"):
        byte_level_bpe(made)


def use(monkeypatch: pytest.MonkeyPatch, *kinds: type[Encoder]) -> None:
    monkeypatch.setattr(choice, "ENCODERS", list(kinds))


@pytest.mark.usefixtures("few")
def test_a_character_that_an_encoder_does_otherwise_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, double(lambda text: "\u00e9" in text))
    made = tokenizer(settings())
    found = choose(made, "fast", text_bytes=0)
    assert (0xE9, 0xE9) in found.left
    attach(made, found)
    some = ["caf\u00e9", "plain", "f\u00fcr"]
    for one, other in zip(made.encode(some), made.encode_texts(some, False), strict=True):
        assert one.tolist() == other.tolist()
    assert made.guard
    assert made.guard.counts["left texts"] == 1
    assert made.guard.counts["own texts"] == 2
    assert made.guard.counts["all texts"] == 3


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda text: "'s" in text and "a" in text, r"does \d+ characters otherwise"),
        (lambda text: "x" * 3 in text or text == " " * 3_000, r"gives other ids for '   "),
    ],
)
def test_an_encoder_that_errs_in_its_trial_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool], reason: str
) -> None:
    use(monkeypatch, double(wrong))
    made = tokenizer(settings())
    with pytest.raises(InputError, match=f"--encoder fast cannot encode for .*{reason}"):
        choose(made, "fast", text_bytes=0)
    found = choose(made, "auto", text_bytes=2**40)
    assert found.name == "library"
    assert "otherwise" in found.reasons[0] or "other ids" in found.reasons[0]


@pytest.mark.usefixtures("few")
def test_a_trial_is_made_once_and_waited_for_where_it_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, double(lambda _: False))
    made, calls = tokenizer(settings()), []
    inner = choice.try_encoder
    monkeypatch.setattr(choice, "try_encoder", lambda *a: calls.append(a) or inner(*a))
    some, many = 3 * 2**20, 64 * 2**20
    few_bytes = choose(made, "auto", text_bytes=some)
    assert (few_bytes.name, few_bytes.version, calls) == ("library", "", [])
    assert "the text is too short" in few_bytes.reasons[0]
    done: list[tuple[int, int]] = []
    assert choose(made, "auto", text_bytes=many, progress=lambda *a: done.append(a)).name == "fast"
    assert done[-1][0] == done[-1][1] > 100
    assert choose(made, "auto", text_bytes=some).version == "double 1.0", "the trial was kept"
    assert choose(made, "auto", text_bytes=some // 3).name == "library", "nothing to gain"
    assert len(calls) == 1
    caught = frozenset({"double 1.0"})
    assert choose(made, "auto", text_bytes=many, without=caught).name == "library"
    monkeypatch.setattr(verdicts, "library_of", lambda kind: "tokenizers 9.9")
    assert choose(made, "auto", text_bytes=some).name == "library", "it needs another trial"


def test_a_damaged_verdict_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(settings())
    verdicts.keep_verdict(made, "double 1.0", verdicts.Verdict(ratio=2.0))
    assert verdicts.kept_verdict(made, "double 1.0") == verdicts.Verdict(ratio=2.0)
    (file,) = Path(os.environ["JAXDATA_CACHE"]).rglob("*.json")
    file.write_text("{")
    assert verdicts.kept_verdict(made, "double 1.0") is None


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    made = tokenizer(settings())
    for name, extra in (("tiktoken", "tiktoken"), ("fastokens", "fast")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=rf"pip install 'jaxdata\[{extra}\]'"):
            choose(made, "tiktoken" if name == "tiktoken" else "fast", text_bytes=0)
    assert choose(made, "verify", text_bytes=0).name == "library"
    with pytest.raises(InputError, match="encoder='quick'; expected one of"):
        choose(made, "quick", text_bytes=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it is not for bytes tokenizers"):
        choose(tokenizers.load("bytes"), "tiktoken", text_bytes=0)


def test_a_worker_with_another_version_takes_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, double(lambda _: False))
    made = tokenizer(settings())
    attach(made, choice.Choice("fast", "double 0.9"))
    assert made.guard is None
    attach(made, choice.Choice("fast", "double 1.0"))
    assert made.guard is not None


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
