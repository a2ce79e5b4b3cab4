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
from jaxdata.tokenizers.base import CL100K_SPLIT
from jaxdata.tokenizers.encoders import Refused
from jaxdata.tokenizers.encoders.fast import FastokensEncoder, check_parts
from jaxdata.tokenizers.encoders.trial import naughty_texts
from tests.tokenizers.conftest import KNOWN, guarded, same
from tests.tokenizers.made import BYTE_LEVEL, FAMILIES, TEXTS, settings, split, tokenizer

FUZZED = int(os.environ.get("JAXDATA_TEST_FUZZED", "2000"))
NEW = {*"\u180e\u017f\ufffe\ue000"}
"""characters on which implementations differ: a trial leaves them to the library"""


def fuzzed(count: int) -> Iterator[str]:
    draw = random.Random(7)
    for text in naughty_texts(["<tool>", "<tool>er", "  "], count):
        yield text + "".join(chr(draw.choice(KNOWN)) for _ in range(draw.randrange(4)))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_fuzzed_texts_are_the_librarys(family: str) -> None:
    same(guarded(tokenizer(settings(family)), "fast"), list(fuzzed(FUZZED)))


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
        check_parts(changed(path, value))


def test_tokens_that_no_merge_makes_are_refused_as_whole_words() -> None:
    made = settings(ignore_merges=True)
    made["model"]["vocab"]["zzzz"] = 5_000
    says = "takes whole words for tokens, 1 of which no merge makes: 'zzzz'"
    with pytest.raises(Refused, match=says):
        check_parts(made)
    added = made["added_tokens"]
    merged = next(left + right for left, right in made["model"]["merges"] if left + right > "a")
    made["added_tokens"] = [*added, added[0] | {"content": merged}]
    with pytest.raises(Refused, match=says):
        check_parts(made)  # a token that is added and made takes the place of none
    made["added_tokens"] = [*added, added[0] | {"content": "zzzz"}]
    with pytest.raises(Refused, match=says):
        check_parts(made)  # as text, a special token is a word like others
    made["model"]["vocab"]["<|zzzz|>"] = made["model"]["vocab"].pop("zzzz")
    made["added_tokens"] = [*added, added[0] | {"content": "<|zzzz|>"}]
    check_parts(made)
    made["added_tokens"] = added
    made["model"]["vocab"]["zzzz"] = made["model"]["vocab"].pop("<|zzzz|>")
    del made["model"]["vocab"]["zzzz"], made["model"]["vocab"]["A"]
    with pytest.raises(Refused, match="its vocabulary lacks 1 of the 256 bytes"):
        check_parts(made)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_librarys_ids(family: str) -> None:
    pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    made = tokenizer(settings(family))
    FastokensEncoder.check(made)
    words = ["<tool>", "<tool>er", "  ", "    "]
    texts = [*islice(naughty_texts(words, 300), 40, None), "e\u0301 <tool>er e\u0301    x"]
    texts = [text for text in texts if not set(text) & NEW]
    found = FastokensEncoder(made).encode(texts)
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
