"""Byte-level BPE trained here: the merges of the library, and two exports with the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer, byte_level_training, word_counts
from jaxdata.tokenizers.byte_level_training import Corpus
from jaxdata.tokenizers.text_cuts import split_rule
from jaxdata.tokenizers.word_counts import WordCounts
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


def test_its_merges_are_those_of_the_librarys_trainer(both: Both) -> None:
    model = json.loads(both[0].files()["tokenizer.json"])
    rule = model["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    library = hf.Tokenizer(hf.models.BPE())
    parts = hf.pre_tokenizers
    split = parts.Split(hf.Regex(rule), "isolated")
    library.pre_tokenizer = parts.Sequence([split, parts.ByteLevel(False, use_regex=False)])
    trainer = hf.trainers.BpeTrainer(
        vocab_size=SIZE - len(both[0].special_tokens),
        initial_alphabet=parts.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(TEXTS, trainer)
    merges = json.loads(library.to_str())["model"]["merges"]
    assert model["model"]["merges"] == merges
    assert len(merges) == SIZE - 256 - len(both[0].special_tokens)


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


def test_long_texts_have_the_same_words_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = (WordCounts(split_rule("gpt4", 2)) for _ in range(2))
    whole.add(TEXTS)
    for module, name, value in (
        (byte_level_training, "_PART", 20),
        (word_counts, "_AT_ONCE", 100),
        (word_counts, "_MOST", 50),
    ):
        monkeypatch.setattr(module, name, value)
    cut.add(Corpus(TEXTS, None))
    assert cut.words() == whole.words()
    monkeypatch.setattr(word_counts, "_MOST_WORDS", 100)
    few = WordCounts(split_rule("gpt4", 2))
    few.add(f"the word{'xyz'[n % 3] * (n // 3)} and" for n in range(400))
    found = few.words()
    assert len(found) < 200, "of too many words the rarest are forgotten"
    assert found[b" and"] == found[b"the"] == 400


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
