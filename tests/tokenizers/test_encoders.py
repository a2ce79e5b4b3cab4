"""Encoders give the library's ids, or are refused with a reason."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.converter import texts
from jaxdata.tokenizers.encoders import (
    Encoder,
    Refused,
    choice,
    trial,
)
from jaxdata.tokenizers.encoders.byte_level import byte_level_bpe
from jaxdata.tokenizers.encoders.fastokens_core import FastokensEncoder
from jaxdata.tokenizers.encoders.merges import check_merges
from jaxdata.tokenizers.encoders.naughty import naughty_texts
from jaxdata.tokenizers.encoders.tiktoken_core import TiktokenEncoder
from jaxdata.tokenizers.text_cuts import CL100K_SPLIT
from tests.tokenizers.conftest import KNOWN, guarded, same
from tests.tokenizers.made import BYTE_LEVEL, FAMILIES, TEXTS, of_merges, settings, split, tokenizer
from tests.tokenizers.test_tokenizers import open_one

FUZZED = int(os.environ.get("JAXDATA_TEST_FUZZED", "2000"))
EVERY = int(os.environ.get("JAXDATA_TEST_EVERY_DOCUMENT", "150"))
ENCODERS = [kind.name for kind in choice.ENCODERS if "hf" in kind.kinds]


NEW = {*"\u180e\u017f\ufffe\ue000"}


"""characters on which implementations differ: a trial leaves them to the library"""


def fuzzed(count: int) -> Iterator[str]:
    draw = random.Random(7)
    for text in naughty_texts(["<tool>", "<tool>er", "  "], count):
        yield text + "".join(chr(draw.choice(KNOWN)) for _ in range(draw.randrange(4)))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_fuzzed_texts_are_the_librarys(family: str, name: str) -> None:
    same(guarded(tokenizer(settings(family)), name), list(fuzzed(FUZZED)))


@pytest.fixture(scope="module")
def real(shared_data: Path) -> list[str]:
    files = [str(path) for path in shared_data.glob("[cmsw]*.*") if path.suffix != ".md"]
    some = [text for n, text in enumerate(texts(files)) if n % EVERY == 0]
    assert len(some) > 100
    return some


@pytest.mark.exhaustive
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("spec", "name"),
    [*product(["gpt2-hf", "neox", "gpt2-files"], ENCODERS), ("gpt2", "fast"), ("cl100k", "fast")],
)
def test_ids_of_real_documents_are_the_librarys(
    shared_data: Path, real: list[str], spec: str, name: str
) -> None:
    same(guarded(open_one(shared_data, spec), name), real)


@pytest.mark.exhaustive
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
    made = settings("neox")
    *above, last = path.split("/")
    inner = made
    for name in above:
        inner = inner[int(name) if name.isdecimal() else name]
    inner[last] = value
    return made


BYTES = {**BYTE_LEVEL, "use_regex": False}


def in_sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


DIGITS_OF_3 = [{"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated"}]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model/byte_fallback", True, "its model has byte_fallback"),
        ("model/end_of_word_suffix", "</w>", "its model has end_of_word_suffix"),
        ("model/type", "Unigram", "its model is 'Unigram'"),
        ("normalizer", {"type": "Lowercase"}, "its normalizer is 'Lowercase'"),
        ("pre_tokenizer", {**BYTE_LEVEL, "add_prefix_space": True}, "puts a space before a text"),
        ("pre_tokenizer", {"type": "Whitespace"}, "last step of splitting is 'Whitespace'"),
        ("pre_tokenizer", None, "last step of splitting is None"),
        (
            "pre_tokenizer",
            in_sequence(*DIGITS_OF_3 * 2, BYTES),
            r"\(Split, Split, ByteLevel\) is not",
        ),
        ("pre_tokenizer", in_sequence(*DIGITS_OF_3, BYTES), "its splitting rule is not known"),
        ("pre_tokenizer", split(CL100K_SPLIT, "Removed"), "the behavior 'Removed'"),
        ("added_tokens/1/content", "e\u0301", r"the added token .* is not in NFC"),
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
    says = "takes whole words for tokens, 1 of which no merge makes: 'zzzz'"
    with pytest.raises(Refused, match=says):
        byte_level_bpe(made)
    added = made["added_tokens"]
    merged = next(left + right for left, right in made["model"]["merges"] if left + right > "a")
    made["added_tokens"] = [*added, added[0] | {"content": merged}]
    with pytest.raises(Refused, match=says):
        byte_level_bpe(made)  # a token that is added and made takes the place of none
    made["added_tokens"] = [*added, added[0] | {"content": "zzzz"}]
    with pytest.raises(Refused, match=says):
        byte_level_bpe(made)  # as text, a special token is a word like others
    made["model"]["vocab"]["<|zzzz|>"] = made["model"]["vocab"].pop("zzzz")
    made["added_tokens"] = [*added, added[0] | {"content": "<|zzzz|>"}]
    assert b"<|zzzz|>" not in byte_level_bpe(made).ids
    made["added_tokens"] = added
    made["model"]["vocab"]["zzzz"] = made["model"]["vocab"].pop("<|zzzz|>")
    del made["model"]["vocab"]["zzzz"], made["model"]["vocab"]["A"]
    with pytest.raises(Refused, match="its vocabulary lacks 1 of the 256 bytes"):
        byte_level_bpe(made)


@pytest.mark.parametrize("kind", [TiktokenEncoder, FastokensEncoder])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_librarys_ids(family: str, kind: type[Encoder]) -> None:
    if kind is FastokensEncoder:
        pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    made = tokenizer(settings(family))
    kind.check(made)
    words = ["<tool>", "<tool>er", "  ", "    "]
    texts = [*islice(naughty_texts(words, 300), 40, None), "e\u0301 <tool>er e\u0301    x"]
    texts = [text for text in texts if not set(text) & NEW]
    found = kind(made).encode(texts)
    for text, one, other in zip(texts, found, made.encode_texts(texts, False), strict=True):
        assert one.tolist() == other.tolist(), text
        assert one.dtype == np.uint32


@pytest.mark.usefixtures("few")
def test_ranks_of_an_encoding_give_the_librarys_ids(tmp_path: Path) -> None:
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    tokenizers.train_byte_level(TEXTS, tmp_path / "t", vocab_size=400)
    made = tokenizers.load(f"tiktoken:{tmp_path / 't'}")
    same(guarded(made, "fast"), [*TEXTS, " " * 10_000 + "a"])
    (tmp_path / "t/encoding.json").write_text(
        '{"pattern": "a+", "special_tokens": {"<|endoftext|>": 399}}'
    )
    with pytest.raises(Refused, match=r"its splitting rule is not known: 'a\+'"):
        FastokensEncoder.check(tokenizers.load(f"tiktoken:{tmp_path / 't'}"))
