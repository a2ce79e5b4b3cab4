"""Parts of encoders by themselves: what is hard, what is refused, who is worth it, what is said."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.base import BYTE_ALPHABET as ALPHABET
from jaxdata.tokenizers.base import CL100K_SPLIT
from jaxdata.tokenizers.encoders import (
    Encoder,
    EncodingSummary,
    Refused,
    attach,
    choice,
    choose,
    library_of,
    refuse,
    trial,
)
from jaxdata.tokenizers.encoders import fast as fastokens_core
from jaxdata.tokenizers.encoders import guarded as verdicts
from jaxdata.tokenizers.encoders.base import added_texts, unassigned
from jaxdata.tokenizers.encoders.fast import FastokensEncoder, check_parts
from jaxdata.tokenizers.encoders.trial import naughty_texts
from jaxdata.tokenizers.encoders.words import JoinedPairs
from tests.tokenizers import made
from tests.tokenizers.made import BYTE_LEVEL, DIGITS, Double, double, split, tokenizer


def test_texts_that_are_hard_are_always_the_same() -> None:
    texts = [*naughty_texts(["word"])]
    assert len(texts) == 20_000 + len([*naughty_texts(["word"], 0)])
    known = hashlib.sha256(repr(texts[:500]).encode()).hexdigest()
    assert known == "2eeac70215e97af11b7c1f9280edc6a8005909502bf0c5cff89dac271b408163", (
        "a trial that changes counts up `_TRIAL`"
    )


def test_what_an_encoder_must_have() -> None:
    assert Encoder.__abstractmethods__ == {"__init__", "version", "encode"}
    assert unassigned("bytes").tolist() == []
    assert added_texts(tokenizer(made.settings())) == [
        *("<|endoftext|>", "<tool>er"),
        *("  ", "    ", "<tool>"),
    ]
    assert added_texts(SimpleNamespace(special_tokens={"<s>": 1})) == ["<s>"]  # type: ignore[arg-type]


def test_every_byte_is_written_as_the_library_writes_it() -> None:
    assert {*ALPHABET} == {*hf.pre_tokenizers.ByteLevel.alphabet()}
    whole = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in (*map(chr, range(128)), "\u00a0\u0100", "\u4e2d", "\U0010ffff", "\ufeff\u07ff"):
        ((written, _),) = whole.pre_tokenize_str(text)
        assert bytes(ALPHABET[one] for one in written) == text.encode()


def lacking(*gone: int) -> dict[str, Any]:
    found = made.settings()
    found["model"]["merges"] = []
    for char, byte in ALPHABET.items():
        if byte in gone:
            del found["model"]["vocab"][char]
    return found


def test_bytes_that_no_text_holds_may_lack() -> None:
    never = [byte for byte in range(256) if byte in (0xC0, 0xC1) or byte > 0xF4]
    check_parts(lacking(*never))
    for byte in (0, 0xBF, 0xC2, 0xF4):
        with pytest.raises(Refused, match="its vocabulary lacks 14 of the 256 bytes"):
            check_parts(lacking(byte, *never))


def of_steps(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


PLAIN = {"type": "ByteLevel", "add_prefix_space": False}
RULE = split(CL100K_SPLIT)["pretokenizers"][0]
BYTES = {**BYTE_LEVEL, "use_regex": False}


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([{"type": "ByteLevel"}], "it puts a space before a text"),
        ([DIGITS, BYTES], r"its splitting rule is not known: 'Digits'"),
        ([{**DIGITS, "individual_digits": False}, PLAIN], r"\(Digits, ByteLevel\) is not known"),
        ([RULE, PLAIN], r"its sequence of splits \(Split, ByteLevel\) is not known"),
        ([{**RULE, "invert": True}, BYTES], "its splitting rule has the behavior 'Isolated'"),
        ([{**RULE, "pattern": {"Regex": "a" * 90}}, BYTES], f"not known: '{'a' * 60}'$"),
    ],
)
def test_steps_of_splitting_that_are_not_known_are_refused(steps: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_parts(made.settings() | {"pre_tokenizer": of_steps(*steps)})


def test_what_matters_to_no_id_is_taken() -> None:
    changed = made.settings() | {"pre_tokenizer": PLAIN}
    changed["added_tokens"][0]["lstrip"] = True  # a special token is text
    check_parts(changed)
    changed["model"] |= {"ignore_merges": True}
    check_parts(changed)
    changed["model"]["merges"] = [" ".join(pair) for pair in changed["model"]["merges"]]
    check_parts(changed)
    del changed["model"]["merges"]
    with pytest.raises(Refused, match="its model is 'BPE', not byte-level BPE"):
        check_parts(changed)


def words_encoder(needs: bool, kinds: tuple[str, ...] = ("hf",)) -> Any:
    return type("Words", (Double,), {"needs_trial": needs, "kinds": kinds})


@pytest.mark.usefixtures("few")
def test_auto_takes_what_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def chosen(kind: str, text_bytes: int) -> str:
        tokens = tokenizer(made.settings())
        monkeypatch.setattr(tokens, "kind", kind, raising=False)
        return choose(tokens, "auto", text_bytes=text_bytes).name

    monkeypatch.setattr(choice, "ENCODERS", [words_encoder(False, ("hf", "other"))])
    assert chosen("hf", 0) == chosen("other", 0) == "fast"
    assert chosen("bytes", 2**40) == "library"
    for asked in ("auto", "fast", "verify"):
        found = choose(tokenizer(made.settings()), asked, text_bytes=2**40)  # type: ignore[arg-type]
        assert (found.name, found.everything) == ("fast", asked == "verify")
    monkeypatch.setattr(choice, "ENCODERS", [double(lambda _: False)])
    with caplog.at_level(logging.WARNING, "jaxdata"):
        assert chosen("hf", 2**26 - 1) == "library"
        assert caplog.messages == []
        assert chosen("hf", 2**26) == "fast"
        assert caplog.messages == ["trying double 1.0 on the tokenizer 'made': some seconds, once"]
    refuse(tokenizer(made.settings()), "double 1.0", "it was caught")
    found = choose(tokenizer(made.settings()), "auto", text_bytes=2**40)
    assert (found.name, found.reasons) == ("library", ("fast: it was caught",))


def test_an_encoder_that_cannot_be_made_leaves_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing(Double):
        def __init__(self, tokenizer: Any) -> None:
            raise Refused("not here")

    tokens = tokenizer(made.settings())
    for kind, guards in ((double(lambda _: False), True), (Refusing, False)):
        monkeypatch.setattr(choice, "ENCODERS", [kind])
        attach(tokens, choice.Choice("fast", "double 1.0", everything=True))
        assert (tokens.guard is not None) == guards
        if tokens.guard:
            tokens.encode(["a", "b"])
            assert tokens.guard.counts["both texts"] == 2
            attach(tokens, choice.Choice("slow", "double 1.0"))
            assert tokens.guard is None


def test_a_verdict_depends_on_these_facts() -> None:
    tokens: Any = SimpleNamespace(kind="bytes", files=lambda: {"b": b"2", "a": b"1"})
    _, _, *facts, unicode, one, two = verdicts._facts(tokens, "fast 1")
    assert [*verdicts._facts(tokens, "fast 1")][:3] == ["trial 3", "fast 1", "None"]
    assert (facts, unicode[:16]) == (["None"], "Python's Unicode")
    assert one == f"a {hashlib.sha256(b'1').hexdigest()}"
    assert two == f"b {hashlib.sha256(b'2').hexdigest()}"
    assert library_of("bytes") is None


def test_a_code_point_involves_what_it_is_composed_of_but_accents() -> None:
    expected = {0xE9: {0xE9}, 0x1F79: {0x1F79, 0x3BF}, 0x300: {0x300}, 0x36F: {0x36F}}
    expected |= {0x1E9B: {0x1E9B, 0x17F}, 0xAC00: {0xAC00, 0x1100, 0x1161}, 0x341: {0x341}}
    for code, parts in expected.items():
        assert {*trial._involved(code)} == parts
    counts = [(0x7F, 1), (0x80, 2), (0x2FF, 2), (0x300, 1), (0x36F, 1), (0x370, 2)]
    assert [(code, len([*trial._involved(code)])) for code, _ in counts] == counts


def test_a_thousand_characters_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "naughty_texts", lambda words: ["a"])
    tokens = tokenizer(made.settings())
    for count in (1_000, 1_001):
        some = "".join(chr(0x4E00 + n) for n in range(count))
        monkeypatch.setattr(trial, "every_character", lambda some=some: some)
        done: list[tuple[int, ...]] = []
        found = trial.try_encoder(
            double(lambda text: text != "a"), tokens, lambda *n, done=done: done.append(n)
        )
        says = f"it does 1,001 characters otherwise, as {some[:4]!a}"
        assert found.refused == (None if count == 1_000 else says)
        assert ((0x4E00, 0x4E00 + 999) in found.left) == (count == 1_000)
        assert done[:2] == [(512, count), (count, count)]


def test_an_encoder_that_errs_on_ascii_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "every_character", lambda: "\x7f\x80")
    monkeypatch.setattr(trial, "naughty_texts", lambda words: ["a"])
    tokens = tokenizer(made.settings())
    found = [trial.try_encoder(double(lambda text, c=c: c in text), tokens) for c in "\x7f\x80"]
    assert [verdict.refused for verdict in found] == [
        "it does 1 characters otherwise, as '\\x7f'",
        None,
    ]
    assert (0x80, 0x80) in found[1].left
    assert found[1].left[-1] == (0xE01F0, 0x10FFFF), "private planes, and what tables lack before"


@given(st.sets(st.text("abcde \u00e9", min_size=2, max_size=2), max_size=12), st.data())
@settings(max_examples=60)
def test_words_start_where_no_pair_is_joined(pairs: set[str], data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("abcde \u00e9", max_size=9), max_size=4))
    text = "".join(texts)
    begins = [sum(map(len, texts[:n])) for n in range(len(texts) + 1)]
    expected = [at for at in range(len(text)) if at in begins or text[at - 1 : at + 1] not in pairs]
    found = JoinedPairs(pairs).words(text, np.array(begins, np.int64))
    assert found.tolist() == expected


def fast(encode: Callable[..., Any]) -> FastokensEncoder:
    found = FastokensEncoder.__new__(FastokensEncoder)
    found._encode = encode
    return found


def test_what_fastokens_fails_on_is_left_to_the_library() -> None:
    def fails(error: BaseException) -> Any:
        def encode(texts: list[str], split_special_tokens: bool) -> Any:
            raise error

        return encode

    with pytest.raises(CannotEncode, match=r"^fastokens fails on a text: no$"):
        fast(fails(ValueError("no"))).encode(["a"])
    for error in (KeyboardInterrupt(), MemoryError()):
        with pytest.raises(type(error)):
            fast(fails(error)).encode(["a"])

    def works(texts: list[str], split_special_tokens: bool) -> tuple[bytes, bytes]:
        assert (texts, split_special_tokens) == (["a", "", "b"], True)
        return struct.pack("<3I", 5, 6, 7), struct.pack("<4Q", 0, 2, 2, 3)

    assert [ids.tolist() for ids in fast(works).encode(("a", "", "b"))] == [[5, 6], [], [7]]


def test_another_fastokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    broken = tokenizer(made.settings())
    monkeypatch.setattr(broken, "as_json", lambda: "{")
    with pytest.raises(Refused, match=r"^fastokens cannot read it: "):
        FastokensEncoder(broken)
    with pytest.raises(Refused, match="its normalizer is"):
        FastokensEncoder.check(tokenizer(made.settings() | {"normalizer": {"type": "Lowercase"}}))
    assert FastokensEncoder.version() == "fastokens 0.3.5"
    monkeypatch.setattr(fastokens_core, "version", lambda _: "0.3.6")
    with pytest.raises(Refused, match=r"^fastokens 0\.3\.6 is installed; .* needs 0\.3\.5$"):
        FastokensEncoder.version()


def test_a_summary_names_who_encoded_most_and_how_fast() -> None:
    none = EncodingSummary(library="theirs 2")
    assert (none.remarkable, none.encoder, none.ratio) == (False, "theirs 2", None)
    assert [*none.lines()] == ["encoded by theirs 2"]
    ours = EncodingSummary(library=None, counts={"": {"all texts": 1}})
    assert (ours.encoder, [*ours.lines()], ours.remarkable) == ("", [], False)
    refused = EncodingSummary(library="t 2", counts={"": {}}, reasons=("a: no", "b: no"))
    assert refused.remarkable
    assert [*refused.lines()] == ["encoded by t 2 (a: no; b: no)"]
    most = {"own characters": 600, "own microseconds": 200, "both characters": 30}
    counts = {"": {}, "b 1": {"own characters": 5}, "a 1": most | {"both microseconds": 20}}
    both = EncodingSummary(library="t 2", counts=counts)
    assert (both.remarkable, both.encoder, both.ratio) == (True, "a 1", 2.0)
    assert [line.split(";")[0] for line in both.lines()] == [
        *("encoded by a 1", "encoded by b 1", "encoded by t 2")
    ]
    instant = {"own characters": 6, "both characters": 3, "own microseconds": 0}
    assert EncodingSummary(library="t", counts={"a 1": instant}).ratio == 2.0


@pytest.mark.parametrize(
    ("both", "left", "micro", "said"),
    [
        (299, 0, 10_000, ", 1.0 times as fast as t; 299 of 9,000 texts compared, all equal"),
        (299, 0, 9_999, "; 299 of 9,000 texts compared, all equal"),
        (8_000, 1_000, 0, "; 8,000 of 9,000 texts compared, all equal; 1,000 left to the library"),
        (
            *(600, 1, 0),
            "; 600 of 9,000 texts compared, all equal: with 95 % confidence fewer than 1 in 200 "
            "differ; 1 left to the library",
        ),
    ],
)
def test_a_line_says_what_the_library_compared_and_encoded(
    both: int, left: int, micro: int, said: str
) -> None:
    counts = {"all texts": 9_000, "both texts": both, "left texts": left, "own characters": 10}
    times = {"both microseconds": micro, "own microseconds": micro, "both characters": 10}
    summary = EncodingSummary(library="t", counts={"a 1": counts | times})
    assert [
        line.replace(", 1.0 times as fast as t", "") if not micro else line
        for line in summary.lines()
    ] == [f"encoded by a 1{said}"]
