"""Encoders give the library's ids, or are refused with a reason; what guards them notices."""

import hashlib
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings as checks, strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError, install_command
from jaxdata.tokenizers import CannotEncode, Tokenizer
from jaxdata.tokenizers.base import CL100K_SPLIT
from jaxdata.tokenizers.encoders import choice, fast
from jaxdata.tokenizers.encoders.base import CodePoints, EncoderDiffers, Refused, shown
from jaxdata.tokenizers.encoders.choice import Choice, Verdict, attach, choose, hard_texts
from jaxdata.tokenizers.encoders.fast import FastokensEncoder, check_parts
from tests.tokenizers.made import (
    BYTES,
    DIGITS,
    FAMILIES,
    TEXTS,
    Double,
    double,
    rule,
    sequence,
    settings,
    split,
    tokenizer,
)

Patch = pytest.MonkeyPatch
PLAIN = {"type": "ByteLevel", "add_prefix_space": False}
RULE = rule(CL100K_SPLIT)


def check_same(made: Tokenizer, texts: list[str]) -> None:
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    FastokensEncoder.check(made)
    found = FastokensEncoder(made).encode(texts)
    for text, one, other in zip(texts, found, made.encode_texts(texts, False), strict=True):
        assert one.tolist() == other.tolist(), text


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_librarys_ids(family: str) -> None:
    made = tokenizer(settings(family))
    new = {*"\u180e\u017f\ufffe\ue000"}  # implementations differ: a trial leaves them
    check_same(made, [text for text in [*hard_texts(made, 300)][40:] if not new & {*text}])


def test_ranks_of_an_encoding_give_the_librarys_ids(tmp_path: Path) -> None:
    tokenizers.train_byte_level(TEXTS, tmp_path, vocab_size=400)
    check_same(tokenizers.load(f"tiktoken:{tmp_path}"), [*TEXTS, " " * 10_000 + "a"])
    other = '{"pattern": "a+", "special_tokens": {"<|endoftext|>": 399}}'
    (tmp_path / "encoding.json").write_text(other)
    with pytest.raises(Refused, match=r"its way of splitting is not known: a\+"):
        FastokensEncoder.check(tokenizers.load(f"tiktoken:{tmp_path}"))


def steps(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": sequence(*parts)}


UNKNOWN: list[Any] = [
    ({"model": {"type": "Unigram"}}, "its model is 'Unigram', not BPE"),
    ({"normalizer": {"type": "Lowercase"}}, "its normalizer is 'Lowercase'; NFC is the only"),
    ({"pre_tokenizer": None}, "its way of splitting is not known: none"),
    (steps({"type": "ByteLevel"}), 'not known: {"type": "ByteLevel"}'),
    (steps({**DIGITS, "individual_digits": False}, PLAIN), 'not known: {"type": "Digits"'),
    (steps({**RULE, "invert": True}, BYTES), 'not known: {"type": "Split"'),
    ({"pre_tokenizer": split(CL100K_SPLIT, "Removed")}, 'not known: {"type": "Split"'),
    (steps({**RULE, "pattern": {"Regex": "a" * 90}}, BYTES), f"not known: {'a' * 60}$"),
]


@pytest.mark.parametrize(("changed", "reason"), UNKNOWN)
def test_a_part_that_is_not_known_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_parts(settings("neox") | changed)


def test_fastokens_is_of_one_version_and_leaves_what_it_fails_on(monkeypatch: Patch) -> None:
    found = FastokensEncoder.__new__(FastokensEncoder)
    for error, raised in (ValueError("no"), CannotEncode), (MemoryError(), MemoryError):
        found._encode = mock.Mock(side_effect=error)
        with pytest.raises(raised):
            found.encode(["a"])
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    assert FastokensEncoder.version() == "fastokens 0.3.5"
    broken = tokenizer(settings())
    monkeypatch.setattr(broken, "as_json", lambda: "{")
    with pytest.raises(Refused, match=r"^fastokens cannot read it: "):
        FastokensEncoder(broken)
    monkeypatch.setattr(fast, "version", lambda _: "0.3.6")
    with pytest.raises(Refused, match=r"^fastokens 0\.3\.6 is installed; .* needs 0\.3\.5$"):
        FastokensEncoder.version()


EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFE, 0x10FFFF]
ANY_TEXTS = st.lists(st.text(st.sampled_from([*map(chr, EDGES), "a", "\ud800", "\udfff"])))


@given(st.sets(st.sampled_from(EDGES) | st.integers(0, 9)), ANY_TEXTS)
@checks(max_examples=40)
def test_texts_with_a_code_point_of_a_set_are_found(codes: set[int], texts: list[str]) -> None:
    table = np.zeros(0x110000, bool)
    table[[*codes]] = True
    ranges = choice._ranges(table)
    assert sorted(codes) == [code for a, b in ranges for code in range(a, b + 1)]
    assert all(b + 1 < a for (_, b), (a, _) in pairwise(ranges))

    def held(one: str) -> bool:
        return 0xD800 <= ord(one) < 0xE000 or ord(one) in codes

    expected = [n for n, text in enumerate(texts) if any(map(held, text))]
    assert CodePoints(ranges).found_in(texts) == expected


def test_a_trial_has_the_same_hard_texts_each_token_and_every_character_of_pythons_tables() -> None:
    made = tokenizer(settings())
    texts = [*hard_texts(made, 300)]
    digest = hashlib.sha256(repr(texts[:450]).encode()).hexdigest()
    assert digest.startswith("2872b22458cd836a"), "a trial that changes counts up `_VERSION`"
    tokens = {piece.decode("utf-8", "replace") for piece in made.piece_bytes()}
    assert {text for text in tokens if "\ufffd" not in text} <= {*texts}
    assert {"<tool>", "<tool>er", "  ", "<|endoftext|>"} <= {*texts}
    known = choice._known()
    assert len({*known}) == len(known) > 140_000
    assert {"\0", "\ufffd", "\ue000", "\U000e0001"} <= {*known}
    assert not {"\u0378", "\ud800", "\U000f0000", "\U0010ffff"} & {*known}


def tried(known: str, hard: Sequence[str], *errs: Callable[[str], bool]) -> Verdict:
    """A trial of some characters and texts, of a double that errs; it says how far it is."""
    done: list[tuple[int, int]] = []
    bar = nullcontext(lambda *some: done.append(some))
    doubles = {"_known": lambda: [*known], "hard_texts": lambda _: [*hard]}
    with mock.patch.multiple(choice, progress_bar=lambda _label: bar, **doubles):
        found = choice.try_encoder(double(*errs), tokenizer(settings()))
    sizes = [*range(512, len(known), 512), len(known)]
    assert done[: len(sizes)] == [(size, len(known)) for size in sizes]
    return found


def test_a_trial_says_what_differs() -> None:
    known, hard = "abcdelotx<>!\u00e9\u1f79\u4e00", ["x" * 70, "\u1f79!", "<tool>"]
    found = tried(known, hard, lambda text: "\u1f79" in text)
    assert found.refused is None
    left = {code for first, last in found.left for code in range(first, last + 1)}
    assert {0x3BF, 0x1F79, 0x378, 0xF0000, 0x10FFFF} <= left, "and what it is composed of"
    assert not {0x61, 0xE9, 0x4E00} & left
    failing = tried(known, hard, lambda _: False, lambda text: "\u1f79" in text)
    assert failing.refused is None, "the library encodes them then"
    for text, says in (("\u1f79!", "'\\u1f79!'"), ("x" * 70, f"'{'x' * 64}'...")):
        refused = tried(known, hard, lambda one, text=text: one == text).refused
        assert refused == f"it gives other ids for {says}"
    said = tried(known, hard, lambda _: True).refused
    assert said == "it does 16 characters otherwise, as '!<>a'"


def test_a_thousand_characters_may_differ_and_none_of_ascii() -> None:
    some = "".join(chr(0x4E00 + n) for n in range(1_001))
    for known, wrong, says in (
        (some[:1_000], some, None),
        (some, some, f"it does 1,001 characters otherwise, as {some[:4]!a}"),
        ("\x7f\x80", "\x7f", "it does 1 characters otherwise, as '\\x7f'"),
        ("\x7f\x80", "\x80", None),
    ):
        assert tried(known, ["!"], lambda text, wrong=wrong: {*text} & {*wrong}).refused == says


def test_a_verdict_is_kept_by_both_versions_and_the_files_and_made_again_if_damaged() -> None:
    made, verdict, kept = tokenizer(settings()), Verdict(left=((3, 4),)), choice.kept_verdict
    choice.keep_verdict(made, ("a 1", "b 1"), verdict)
    assert kept(made, ("a 1", "b 1")) == verdict
    other = settings()
    other["added_tokens"][1]["content"] = "   "
    assert kept(tokenizer(other), ("a 1", "b 1")) is None
    assert kept(made, ("a 2", "b 1")) is kept(made, ("a 1", "b 2")) is None
    with mock.patch.object(unicodedata, "unidata_version", "99.0"):
        assert kept(made, ("a 1", "b 1")) is None
    (file,) = Path(os.environ["JAXDATA_CACHE"]).rglob("*.json")
    file.write_text("{")
    assert kept(made, ("a 1", "b 1")) is None


def test_a_trial_is_made_once_and_where_it_is_worth_it(monkeypatch: Patch, caplog: Any) -> None:
    monkeypatch.setattr(choice, "_known", lambda: [*map(chr, range(128))])
    monkeypatch.setattr(choice, "hard_texts", lambda _: [])
    monkeypatch.setattr(choice, "ENCODERS", [double(lambda _: False)])
    made, many = tokenizer(settings()), 64 * 2**20
    assert choose(made, "auto", text_bytes=many - 1) == Choice(), "of little nothing is said"
    assert choose(made, "library", text_bytes=many) == Choice()
    assert caplog.messages == []
    found = choose(made, "auto", text_bytes=many)
    assert (found.name, found.version) == ("fast", "double 1.0")
    assert choose(made, "fast", text_bytes=0) == choose(made, "auto", text_bytes=2**20) == found
    assert choose(made, "auto", text_bytes=2**20 - 1) == Choice(), "to make it takes longer"
    assert caplog.messages == ["trying double 1.0 on the tokenizer 'made': some seconds, once"]
    choice.refuse(made, EncoderDiffers("double 1.0", "x"))
    says = "it gave other ids on a text: double 1.0 gives other ids than the library for 'x'"
    assert choose(made, "auto", text_bytes=many) == Choice(reason=f"fast: {says}")
    assert choose(made, "auto", text_bytes=many - 1) == Choice()
    with pytest.raises(InputError, match=f"--set encoder=fast cannot encode for .* 'made': {says}"):
        choose(made, "fast", text_bytes=0)
    monkeypatch.setattr(choice, "library_of", lambda kind: "tokenizers 9.9")
    assert choose(made, "auto", text_bytes=many).name == "fast", "it needs another trial"


def test_what_is_not_to_be_had_says_so(monkeypatch: Patch) -> None:
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    made, bare = tokenizer(settings()), tokenizers.load("bytes")
    assert choose(bare, "auto", text_bytes=2**40) == Choice()
    assert choice.library_of("bytes") is None
    assert choice.library_of("hf") == f"tokenizers {choice.version('tokenizers')}"
    unknown = tokenizer(settings() | {"pre_tokenizer": {"type": "Whitespace"}})
    assert choose(unknown, "auto", text_bytes=2**40).reason.startswith("fast: its way of splitting")
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert "it is not installed" in choose(made, "auto", text_bytes=2**40).reason
    asked: Any
    for given_, asked, says in (
        (bare, "fast", "fast cannot encode for .*: it is not for bytes tokenizers. --set enc"),
        (made, "fast", re.escape(install_command("fast"))),
    ):
        with pytest.raises(InputError, match=says):
            choose(given_, asked, text_bytes=0)


def test_a_worker_that_lacks_what_was_chosen_takes_the_library(monkeypatch: Patch) -> None:
    made = tokenizer(settings())
    refusing = type("Refusing", (Double,), {"__init__": mock.Mock(side_effect=Refused("no"))})
    for kind, version, guards in (
        (Double, "double 0.9", False),
        (refusing, "double 1.0", False),
        (Double, "double 1.0", True),
    ):
        monkeypatch.setattr(choice, "ENCODERS", [kind])
        attach(made, Choice("fast", version))
        assert (made.guard is not None) == guards
    assert made.eod_id in made.encode(["a<|endoftext|>b"], special=True)[0], "the library's"
    assert made.eod_id not in made.encode(["a<|endoftext|>b"])[0]


def guard_of() -> tuple[choice.GuardedEncoder, mock.Mock]:
    """What guards an encoder that errs on "%", fails on "!" and may not take "?"; the library."""
    made = tokenizers.load("bytes")
    library = mock.Mock(wraps=made)
    kind = double(lambda text: "%" in text, lambda text: "!" in text)
    chosen = Choice("fast", "double 1.0", ((ord("?"), ord("?")),))
    return choice.GuardedEncoder(kind(made), chosen, library), library


SOME = ["", "one", "two words", "x" * 4_096, "y" * 4_097, "ab" * 5_000, "!", "a!", "?", "b?!"]


@given(st.lists(st.lists(st.sampled_from(SOME), max_size=9), max_size=4), st.integers(1, 4))
@checks(max_examples=60)
def test_texts_have_the_librarys_ids_and_some_are_compared_the_first_of_a_unit_among_them(
    batches: list[list[str]], one_in: int
) -> None:
    guard, library = guard_of()
    with mock.patch.object(choice, "_ONE_IN", one_in):
        for _ in range(2):
            guard.begin()
            assert guard.counts == Counter()
            library.encode_texts.reset_mock()
            every = [text for some in batches for text in some]
            for texts in batches:
                found = guard.encode(texts)
                assert [ids.tolist() for ids in found] == [[*text.encode()] for text in texts]
            left = [text for text in every if "?" in text or "!" in text]
            drawn = [text for text in every[::one_in] if text not in left]
            compared = [t[max(len(t) - 4_096, 0) // 2 :][:4_096] for t in drawn]
            took = [text for call in library.encode_texts.mock_calls for text in call.args[0]]
            assert Counter(took) == Counter([*left, *compared])
            counts = {"texts": len(every), "left": len(left), "compared": len(compared)}
            assert +guard.counts == +Counter(counts)


def test_a_difference_in_what_is_compared_is_an_error() -> None:
    long = "a" * 5_000 + "%" + "b" * 5_000
    for texts, text in (
        (["%"], "%"),
        (["fine"] * 256 + ["%"], "%"),
        (["fine"] * 255 + ["%"], None),  # it is not drawn
        ([long], long[2952:7048]),
        ([long + "b" * 90_000], None),  # of a long text a passage is compared
    ):
        found = None
        try:
            guard_of()[0].encode(texts)
        except EncoderDiffers as differs:
            found = differs.text
        assert found == text
    says = "double 1 gives other ids than the library for 'a\\n'"
    assert str(EncoderDiffers("double 1", "a\n")) == says
    assert (shown("a" * 64), shown("a" * 65)) == (repr("a" * 64), repr("a" * 64) + "...")


def test_runs_of_spaces_that_a_library_cannot_take_are_left_to_it() -> None:
    for text, left in (
        ("a" * 450_000 + "\n" * 50_000, 1),
        ("a" * 450_001 + " " * 49_999, 0),
        (" " * 499_999, 0),
    ):
        guard = guard_of()[0]
        guard.encode([text, "short"])
        assert guard.counts["left"] == left


def test_a_summary_names_who_encoded_and_what_was_compared() -> None:
    counts = {"texts": 9_000, "compared": 36}
    told = "encoded by a 1; 36 of 9,000 texts compared, all equal"
    for found, reason, lines in (
        ({"": {}}, "", []),
        ({"": {}}, "a: no", ["encoded by t 2 (a: no)"]),
        ({"a 1": counts}, "", [told]),
        ({"a 1": counts | {"left": 1_000}}, "", [f"{told}; 1,000 left to t 2"]),
        ({"a 1": counts, "": {}}, "", [told, "encoded by t 2"]),
    ):
        summary = choice.EncodingSummary(library="t 2", counts=found, reason=reason)
        assert [*summary.lines()] == lines
    assert [*choice.EncodingSummary(library=None, counts={"": {}, "b 1": {}}).lines()] == []
