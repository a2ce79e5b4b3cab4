"""Byte-level BPE trained here: two exports with the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.base import split_rule
from tests.commands import run
from tests.tokenizers.test_tokenizers import TEXTS

SPECIAL = ["<|reserved_0|>", "<|fim_prefix|>"]
SIZE = 600
Both = tuple[Tokenizer, Tokenizer]


def train(folder: Path, **options: Any) -> Both:
    size = tokenizers.train_byte_level(TEXTS, folder, **{"vocab_size": SIZE} | options)
    assert size == sum(len(text.encode()) for text in TEXTS)
    return tokenizers.load(f"hf:{folder}"), tokenizers.load(f"tiktoken:{folder}")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return train(tmp_path_factory.mktemp("trained") / "folder", special=SPECIAL, pad_id=3)


@given(st.lists(st.one_of(st.text(), st.sampled_from([*SPECIAL, "abab", " 12345", "aaa"]))))
@example(["<|endoftext|>", "<pad>"])
@example(["DON'T I'll x's\r\n\n  \t 1234567 \u0661\u0662\u0663 e\u0301 \U0001f9a5"])
def test_both_exports_give_the_same_ids_and_lose_nothing(both: Both, parts: list[str]) -> None:
    text = "".join(parts)
    one, other = (tokenizer.encode([text])[0].tolist() for tokenizer in both)
    assert one == other
    assert all(tokenizer.decode(one) == text for tokenizer in both)
    assert not {*one} & {*both[0].special_tokens.values()}
    assert both[0].token_bytes[one].sum() == len(text.encode())


def test_both_exports_have_the_same_special_tokens_and_bytes(both: Both) -> None:
    one, other = both
    expected = {"<|endoftext|>": 597, "<|reserved_0|>": 598, "<|fim_prefix|>": 599, "<pad>": 3}
    assert dict(one.special_tokens) == dict(other.special_tokens) == expected
    assert one.token_bytes.tolist() == other.token_bytes.tolist()
    for tokenizer in both:
        assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.vocab_size) == (597, 3, SIZE)
        assert tokenizer.encode(["<pad>"], special=True)[0].tolist() == [3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab_size": 257}, r"vocab_size=257; expected more than 257: 256 bytes, and 1 special"),
        ({"vocab_size": 50_000}, r"cannot train a vocabulary of 50000 on .* bytes.*smaller --v"),
        ({"pad_id": SIZE}, rf"pad_id={SIZE}; expected an id from 0 to {SIZE - 1}"),
        ({"digits": 0}, r"digits=0; expected 1 to 9, or None"),
        ({"split": "gpt5"}, r"split='gpt5'; expected one of gpt2, gpt4, gpt4o"),
        ({"special": ["in"]}, r"special token 'in': a word of the corpus; give another text"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        tokenizers.train_byte_level(TEXTS, tmp_path / "t", **{"vocab_size": SIZE} | options)
    assert not (tmp_path / "t").exists()


def test_the_command_trains_one(tmp_path: Path) -> None:
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    made = ("tokenizer", "train", corpus, "--output", tmp_path / "t", "--vocab-size", "500")
    kind = ("--model-type", "byte-level")
    said = run(*made, *kind, "--special", "<a>,<b>", "--split", "gpt2", "--digits", "1").stdout
    assert f"use it: jaxdata convert INPUT... --tokenizer hf:{tmp_path / 't'}" in said
    rule = json.loads((tmp_path / "t/encoding.json").read_text())["pattern"]
    assert rule == split_rule("gpt2", 1)
    assert "--split goes with" in run(*made, "--split", "gpt2", status=2).stderr
