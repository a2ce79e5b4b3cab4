"""Encoders give the library's ids, or are refused with a reason."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata import tokenizers
from jaxdata.tokenizers.encoders import Encoder, Refused, choice
from jaxdata.tokenizers.encoders.byte_level import byte_level_bpe
from jaxdata.tokenizers.encoders.fastokens_core import FastokensEncoder
from jaxdata.tokenizers.encoders.naughty import naughty_texts
from jaxdata.tokenizers.encoders.tiktoken_core import TiktokenEncoder
from jaxdata.tokenizers.text_cuts import CL100K_SPLIT
from tests.tokenizers.conftest import KNOWN, guarded, same
from tests.tokenizers.made import BYTE_LEVEL, FAMILIES, TEXTS, of_merges, settings, split, tokenizer

FUZZED = int(os.environ.get("JAXDATA_TEST_FUZZED", "2000"))
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


def test_merges_that_ranks_do_otherwise_are_refused() -> None:
    made = of_merges([("a", "b"), ("b", "c"), ("a", "bc")])
    assert TiktokenEncoder(made).encode(["abc"])[0].tolist() != made.encode(["abc"])[0].tolist()
    with pytest.raises(Refused, match="merges do not make the token b'abc' of two earlier ones"):
        TiktokenEncoder.check(made)
    TiktokenEncoder.check(of_merges([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]))


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
