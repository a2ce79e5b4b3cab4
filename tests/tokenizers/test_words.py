"""SentencePiece BPE a word at a time: the ids of the library, whatever the text."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.base.errors import InputError
from jaxdata.tokenizers.encoders import attach, choose
from jaxdata.tokenizers.encoders import words as sentencepiece_words
from jaxdata.tokenizers.encoders.words import WordEncoder, WordsEncoder, pairs, why_not
from jaxdata.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.converter.here import convert_here
from tests.dataset.trees import tree
from tests.tokenizers.test_tokenizers import FILES, TEXTS

STRINGS = int(os.environ.get("JAXDATA_TEST_STRINGS", 2_000))  # 300,000 before a release
LIBRARY = f"sentencepiece {sentencepiece.__version__}"
LOSSLESS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "byte_fallback": True,
}


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"max_sentence_length": 10_000},
    "dummy prefix": {**LOSSLESS, "add_dummy_prefix": True},
    "symbols": {**LOSSLESS, "user_defined_symbols": ["<a b>", "é!", "\n\n", "▁x", " y"]},
    "normalised symbols": {"user_defined_symbols": ["ﬁ", "Å", "a b", "!▁"], "byte_fallback": True},
    "control": {**LOSSLESS, "control_symbols": ["<pad>", "z", "the"]},
    "unused": {**LOSSLESS, "split_by_whitespace": False},
    "no single space": {"normalization_rule_name": "identity", "split_by_whitespace": False},
}


def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(TEXTS).split("\n")),
        model_writer=model,
        minloglevel=3,
        **{"model_type": "bpe", "vocab_size": 700, "num_threads": 1, **options},
    )
    return model.getvalue()


def changed(model: bytes, change: Callable[[Any], None]) -> bytes:
    read = proto.ModelProto.FromString(model)
    change(read)
    return bytes(read.SerializeToString())


@pytest.fixture(scope="module", params=MODELS)
def small(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    model = trained(**MODELS[request.param])
    if request.param == "unused":
        model = changed(model, without_every_third)
    return SentencePieceTokenizer(model, name=request.param)


def without_every_third(model: Any) -> None:
    """No piece that comes of merges is given, and so the parts that it was merged from are."""
    for piece in [piece for piece in model.pieces if len(piece.piece) > 1][270::3]:
        piece.type = proto.ModelProto.SentencePiece.UNUSED


@pytest.fixture(scope="module")
def mistral(shared_data: Path) -> SentencePieceTokenizer:
    file = shared_data / "tokenizers" / FILES["mistral"].partition(":")[2]
    return SentencePieceTokenizer(file.read_bytes(), name="mistral")


def by_words(tokenizer: SentencePieceTokenizer) -> SentencePieceTokenizer:
    """The same tokenizer, encoding by words."""
    again = SentencePieceTokenizer(tokenizer.files()["tokenizer.model"], name=tokenizer.name)
    attach(again, choose(again, "words", text_bytes=0))
    assert again.guard is not None
    return again


def library(tokenizer: SentencePieceTokenizer, texts: Sequence[str]) -> list[list[int]]:
    """What the library itself gives, a text at a time."""
    bare = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.files()["tokenizer.model"])
    return [bare.encode(text) for text in texts]


def check(tokenizer: SentencePieceTokenizer, texts: Sequence[str]) -> None:
    taken = [text for text in texts if WordEncoder.takes(text)]
    found = [ids.tolist() for ids in WordsEncoder(tokenizer).encode(taken)]
    if found != (expected := library(tokenizer, taken)):
        which = next(n for n, ids in enumerate(found) if ids != expected[n])
        raise AssertionError(f"{taken[which]!r}: {found[which]} for {expected[which]}")


def test_what_is_not_proven_goes_to_the_library() -> None:
    plain = trained(**LOSSLESS)

    def as_they_are(model: Any) -> None:
        model.normalizer_spec.escape_whitespaces = False

    def nul(model: Any) -> None:
        model.pieces[400].piece = "a\0"

    reasons = {
        trained(model_type="unigram", **LOSSLESS): "it is a unigram model, not BPE",
        trained(model_type="char", vocab_size=200): "it is a char model, not BPE",
        trained(treat_whitespace_as_suffix=True): "it does not write spaces at the start of words",
        changed(plain, as_they_are): "it does not write spaces at the start of words",
        plain: None,
    }
    assert why_not(changed(plain, nul)) == "a piece holds a NUL"
    for model, reason in reasons.items():
        assert why_not(model) == reason
        tokenizer = SentencePieceTokenizer(model, name="m")
        chosen = choose(tokenizer, "auto", text_bytes=2**30)
        assert chosen.name == ("library" if reason else "words")
        assert chosen.reasons == ((f"words: {reason}",) if reason else ())
        attach(tokenizer, chosen)
        found = tokenizer.encode(TEXTS[:3])
        assert [ids.tolist() for ids in found] == library(tokenizer, TEXTS[:3])


def test_words_between_special_tokens_have_the_librarys_ids(
    mistral: SentencePieceTokenizer, by_mistrals_words: SentencePieceTokenizer
) -> None:
    part = "[INST] words, and more words;\n" * 20
    texts = [f"<s>{part}</s>{part}", "", "</s>", part, f"a\u2581b<s>{part}"]
    (one,) = library(mistral, [part])
    (odd,) = library(mistral, ["a\u2581b"])
    expected = [[1, *one, 2, *one], [], [2], one, [*odd, 1, *one]]
    found = by_mistrals_words.encode(texts, special=True)
    assert [ids.tolist() for ids in found] == expected
    assert {ids.dtype for ids in found} == {np.dtype(np.int32)}


NEAR = ["a", "b", " ", "  ", "\n", "the", " the", "é!", "<a b>", "1", "12", "\u00c5", "fi", "x y"]


@given(st.lists(st.lists(st.sampled_from(NEAR) | st.text(), max_size=12).map("".join), max_size=6))
@settings(max_examples=60)
def test_any_texts_have_the_librarys_ids(small: SentencePieceTokenizer, texts: list[str]) -> None:
    check(small, texts)


@pytest.mark.exhaustive
def test_every_character_has_the_librarys_ids(small: SentencePieceTokenizer) -> None:
    step = 1 if STRINGS > 100_000 else 7
    codes = [code for code in range(1, 0x110000, step) if not 0xD800 <= code < 0xE000]
    runs = [codes[at : at + 997] for at in range(0, len(codes), 997)]
    check(small, ["a".join(map(chr, run)) for run in runs])
    check(small, [" ".join(map(chr, run)) for run in runs])


def strings(tokenizer: SentencePieceTokenizer, count: int, seed: int) -> Iterator[str]:
    """Texts of pieces, of parts of pieces, of what is near them, and of any characters."""
    draw = random.Random(seed)
    model = proto.ModelProto.FromString(tokenizer.files()["tokenizer.model"])
    pieces = [piece.piece.replace("\u2581", " ") for piece in model.pieces]
    rare = [" ", "  ", "\n", "\t", "'s", "1", "é", "e\u0301", "\u00a0", "\u3000", "ﬁ", "🦥", "￼"]

    def part() -> str:
        kind = draw.randrange(8)
        if kind < 4:
            piece = draw.choice(pieces)
            return piece if kind < 2 else piece[draw.randrange(len(piece)) :]
        if kind < 7:
            return draw.choice(rare)
        code = draw.randrange(1, draw.choice([128, 0x2000, 0x11000, 0x110000]))
        return chr(code) if not 0xD800 <= code < 0xE000 else "?"

    for _ in range(count):
        yield "".join(part() for _ in range(draw.randrange(24)))


def test_strings_of_pieces_have_the_librarys_ids(small: SentencePieceTokenizer) -> None:
    check(small, list(strings(small, STRINGS // 4, 1)))


def test_strings_of_mistrals_pieces_have_its_ids(
    mistral: SentencePieceTokenizer, by_mistrals_words: SentencePieceTokenizer
) -> None:
    """Whatever words do not take is encoded by the library: NULs, U+2581, special tokens."""
    texts = ["one two " * 40, "a\u2581b", "", "nul\0 in it", *strings(mistral, STRINGS // 4, 2)]
    assert list(map(WordEncoder.takes, texts[:4])) == [True, False, True, False]
    assert [ids.tolist() for ids in by_mistrals_words.encode(texts)] == library(mistral, texts)
    with pytest.raises(TypeError, match="must be str or bytes"):
        by_mistrals_words.encode(["word " * 100 + "\udc00"])


@pytest.fixture(scope="module")
def by_mistrals_words(mistral: SentencePieceTokenizer) -> SentencePieceTokenizer:
    return by_words(mistral)


def test_words_that_are_wrong_are_found_before_they_are_used(
    mistral: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fewer(model: Any) -> set[str]:
        return {pair for pair in pairs(model) if "e" not in pair}

    monkeypatch.setattr(sentencepiece_words, "pairs", fewer)
    with pytest.raises(InputError, match=r"--encoder words .* 'mistral': .*words otherwise than t"):
        choose(mistral, "words", text_bytes=0)


def test_a_conversion_by_words_is_the_librarys(tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(trained(**LOSSLESS), name="small")
    lines = [json.dumps({"text": f"{text} {number}"}) for number, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"text": "a\u2581b \0"})]))
    found = []
    for encoder in ("library", "words", "verify"):
        given = {"output": tmp_path / encoder, "source": "a", "encoder": encoder}
        report = convert_here(tmp_path / "a.jsonl", tokenizer=tokenizer, **given)
        assert report.encoding is not None
        assert report.encoding.encoder == ("words 1" if encoder != "library" else LIBRARY)
        found.append(tree(tmp_path / encoder))
    assert found[0] == found[1] == found[2]
