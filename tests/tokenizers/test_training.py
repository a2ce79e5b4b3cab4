"""Tokenizers trained here lose nothing, and no text is encoded to a special token."""

import argparse
import calendar
import inspect
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.base import split_rule
from tests.commands import run

SPECIAL = ["<|fim_prefix|>", "<|im_end|>", "<\uff5cfim\u2581hole\uff5c>", "<pad>"]
# Many texts spell them, as text about models does.
TEXTS = [
    f"Line {i} of 20{i:03d}:\n\tthe number 31415926535 and {i * 7919}: größe, 大きさ, "
    + "١٢٣٤٥ " * (i % 3)
    + SPECIAL[i % 4] * 5
    for i in range(300)
]
TEXTS += [inspect.getsource(module) for module in (argparse, calendar, statistics)]
SIZE = 600
ANY = st.lists(st.sampled_from([*SPECIAL, "</s>", "<unk>", "abab", " 12345"]) | st.text())
ODD = "  two  spaces \r\n\t\x00 e\u0301 \u2581 \u2585 \ufeff </s> <0x0A>\x1f"


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("trained") / "folder" / "tokenizer.model"
    options: Any = {"vocab_size": SIZE, "digits": 2, "special": SPECIAL}
    size = tokenizers.train(TEXTS, file, model_type=request.param, **options)
    assert size == sum(len(text.encode()) for text in TEXTS)
    return tokenizers.load(f"sentencepiece:{file}")


@given(ANY.map("".join))
@example(ODD)
@example("\u2581\u2581 a\u2581")
@example("\u2581" * 5_000)
def test_a_trained_tokenizer_loses_nothing(trained: Tokenizer, text: str) -> None:
    (ids,) = trained.encode([text])
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())
    assert not {*ids.tolist()} & {0, 1, 2, *map(trained.token_id, SPECIAL)}


def test_each_special_token_has_one_id_in_the_order_given(trained: Tokenizer) -> None:
    for i, text in enumerate(SPECIAL, 3):
        assert (trained.token_id(text), trained.special_tokens[text]) == (i, i)
        assert trained.encode([text], special=True)[0].tolist() == [i]
        assert (trained.decode([i]), trained.token_bytes[i]) == ("", 0)
    assert (trained.unk_id, trained.bos_id, trained.eod_id, trained.vocab_size) == (0, 1, 2, SIZE)
    assert trained.pad_id == trained.token_id("<pad>"), "reserved, so it is the padding token"
    assert len(trained.encode(["|fim_prefix|"])[0]) > 4, "nothing is learned of their texts"


def test_the_padding_token_has_the_id_asked_for(tmp_path: Path) -> None:
    for pad_id, first in ((3, 4), (399, 3)):
        tokenizers.train(TEXTS, tmp_path / "m", vocab_size=400, special=["<a>"], pad_id=pad_id)
        tokenizer = tokenizers.load(f"sentencepiece:{tmp_path / 'm'}")
        assert tokenizer.pad_id == tokenizer.token_id("<pad>") == pad_id
        assert tokenizer.token_id("<a>") == first


@pytest.mark.parametrize("digits", [None, 3])
def test_pieces_hold_as_many_digits_as_allowed(tmp_path: Path, digits: int | None) -> None:
    for name in ("a", "b"):
        tokenizers.train(TEXTS, tmp_path / name, vocab_size=SIZE, digits=digits)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    tokenizer = tokenizers.load(f"sentencepiece:{tmp_path / 'a'}")
    (ids,) = tokenizer.encode(["31415926535 ١٢٣٤٥"])
    longest = max(sum(c.isdigit() for c in tokenizer.decode([i])) for i in ids)
    assert longest == digits if digits else longest > 3


def test_training_reads_long_lines_and_no_more_than_asked(tmp_path: Path) -> None:
    long_line = ["".join(f"needle{i % 7}\n\t" for i in range(20_000))]
    tokenizers.train(long_line, tmp_path / "m.model", vocab_size=285)
    (ids,) = tokenizers.load(f"sentencepiece:{tmp_path / 'm.model'}").encode(["needle3\n\tneedle4"])
    assert len(ids) <= 8, "a line longer than SentencePiece takes must not be dropped"
    taken = []
    texts = (taken.append(text) or text for text in TEXTS * 100)
    size = tokenizers.train(texts, tmp_path / "m.model", vocab_size=400, max_bytes=9_000)
    assert 9_000 <= size < 14_000
    assert len(taken) < 200


Both = tuple[Tokenizer, Tokenizer]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Byte-level BPE by its two files."""
    folder = tmp_path_factory.mktemp("trained") / "folder"
    special: Any = {"special": SPECIAL[:2], "pad_id": 3}
    size = tokenizers.train_byte_level(TEXTS, folder, vocab_size=SIZE, **special)
    assert size == sum(len(text.encode()) for text in TEXTS)
    return tokenizers.load(f"hf:{folder}"), tokenizers.load(f"tiktoken:{folder}")


@given(ANY.map("".join))
@example("<|endoftext|>")
@example(ODD + "DON'T I'll x's 1234567 \u0661\u0662\u0663 \U0001f9a5")
def test_both_exports_give_the_same_ids_and_lose_nothing(both: Both, text: str) -> None:
    one, other = (tokenizer.encode([text])[0].tolist() for tokenizer in both)
    assert one == other
    assert all(tokenizer.decode(one) == text for tokenizer in both)
    assert not {*one} & {*both[0].special_tokens.values()}
    assert both[0].token_bytes[one].sum() == len(text.encode())


def test_both_exports_have_the_same_tokens_and_bytes(both: Both) -> None:
    expected = {"<|endoftext|>": 597, "<|fim_prefix|>": 598, "<|im_end|>": 599, "<pad>": 3}
    for tokenizer in both:
        assert dict(tokenizer.special_tokens) == expected
        assert tokenizer.token_bytes.tolist() == both[0].token_bytes.tolist()
        assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.vocab_size) == (597, 3, SIZE)
        assert tokenizer.encode(["<pad>"], special=True)[0].tolist() == [3]


TOO_LARGE = "cannot train a vocabulary of 50000 on .* bytes.* --vocab-size"


WRONG: list[Any] = [
    ("train", {"texts": []}, "no text to train a tokenizer on"),
    ("train", {"vocab_size": 50_000}, TOO_LARGE),
    ("train", {"digits": 0}, "digits=0; expected 1 or more"),
    ("train", {"special": ["<unk>"]}, r"special token '<unk>': every model has it"),
    ("train", {"special": ["<a>", "<a>"]}, r"special token '<a>': it is there twice"),
    ("train", {"special": ["<a\n>"]}, r"special token '<a\\n>': expected a printable text"),
    ("train", {"pad_id": 0}, r"pad_id=0 is the id of <unk>; expected 3 or more"),
    ("train", {"pad_id": SIZE}, r"pad_id=600; expected an id from 3 to 599"),
    ("train_byte_level", {"vocab_size": 257}, "expected more than 257: 256 bytes, and 1 spec"),
    ("train_byte_level", {"vocab_size": 50_000}, TOO_LARGE),
    ("train_byte_level", {"pad_id": SIZE}, r"pad_id=600; expected an id from 0 to 599"),
    ("train_byte_level", {"digits": 0}, r"digits=0; expected 1 to 9, or None"),
    ("train_byte_level", {"split": "gpt5"}, r"split='gpt5': expected 'gpt2', 'gpt4' or"),
    ("train_byte_level", {"special": ["in"]}, r"special token 'in': a word of the corpus; g"),
]


@pytest.mark.parametrize(("train", "options", "says"), WRONG)
def test_what_cannot_be_trained_is_refused(
    tmp_path: Path, train: str, options: dict[str, Any], says: str
) -> None:
    given = {"texts": TEXTS, "vocab_size": SIZE} | options
    with pytest.raises(InputError, match=says):
        getattr(tokenizers, train)(output=tmp_path / "m", **given)
    assert not (tmp_path / "m").exists()


def test_the_command_trains_one(tmp_path: Path) -> None:
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    made = ("tokenizer", "train", corpus, "--output", tmp_path / "t", "--vocab-size", "500")
    kind = ("--model-type", "byte-level", "--set", "split=gpt2", "--set", "digits=1")
    said = run(*made, *kind, "--special", "<a>,<b>").stdout
    assert f"use it: jaxdata convert INPUT... --tokenizer hf:{tmp_path / 't'}" in said
    rule = json.loads((tmp_path / "t/encoding.json").read_text())["pattern"]
    assert rule == split_rule("gpt2", 1)
    assert "--set split= goes with" in run(*made, "--set", "split=gpt2", status=2).stderr
