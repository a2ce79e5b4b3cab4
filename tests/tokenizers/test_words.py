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

from jaxdata.converter import texts as read_texts
from jaxdata.errors import InputError
from jaxdata.tokenizers import load
from jaxdata.tokenizers.encoders import (
    Refused,
    attach,
    choose,
    sentencepiece_words,
    word_table,
)
from jaxdata.tokenizers.encoders.sentencepiece_words import WordEncoder, pairs, why_not
from jaxdata.tokenizers.encoders.word_table import WordTable
from jaxdata.tokenizers.encoders.words_core import WordsEncoder
from jaxdata.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.converter.here import convert_here
from tests.format.trees import tree
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
    "lossless": {**LOSSLESS, "allow_whitespace_only_pieces": True},
    "dummy prefix": {**LOSSLESS, "add_dummy_prefix": True},
    "spaces inside": {**LOSSLESS, "split_by_whitespace": False, "split_by_unicode_script": False},
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


def test_fuzzed_strings_have_the_librarys_ids(small: SentencePieceTokenizer) -> None:
    check(small, list(strings(small, STRINGS // 4, 1)))


def test_fuzzed_strings_have_mistrals_ids(mistral: SentencePieceTokenizer) -> None:
    check(mistral, list(strings(mistral, STRINGS, 2)))


@given(st.lists(st.text(), max_size=8))
@settings(max_examples=60)
def test_any_texts_have_the_librarys_ids(small: SentencePieceTokenizer, texts: list[str]) -> None:
    check(small, texts)


NEAR = ["a", "b", " ", "  ", "\n", "the", " the", "é!", "<a b>", "1", "12", "\u00c5", "fi", "x y"]


@given(st.lists(st.lists(st.sampled_from(NEAR), max_size=12).map("".join), max_size=6))
@settings(max_examples=100)
def test_symbols_and_spaces_have_the_librarys_ids(
    small: SentencePieceTokenizer, texts: list[str]
) -> None:
    check(small, texts)


def test_naughty_strings_have_the_librarys_ids(
    small: SentencePieceTokenizer, shared_data: Path
) -> None:
    naughty = json.loads((shared_data / "unicode/blns.json").read_text())
    check(small, [*naughty, "\n".join(naughty).replace("\0", "").replace("\u2581", "")])


@pytest.mark.exhaustive
def test_every_character_has_the_librarys_ids(small: SentencePieceTokenizer) -> None:
    step = 1 if STRINGS > 100_000 else 7
    codes = [code for code in range(1, 0x110000, step) if not 0xD800 <= code < 0xE000]
    runs = [codes[at : at + 997] for at in range(0, len(codes), 997)]
    check(small, ["a".join(map(chr, run)) for run in runs])
    check(small, [" ".join(map(chr, run)) for run in runs])


@pytest.mark.slow
@pytest.mark.parametrize("file", ["code-0.jsonl.gz", "multilingual.jsonl.zst", "short.jsonl.gz"])
def test_documents_have_the_librarys_ids(
    mistral: SentencePieceTokenizer, shared_data: Path, file: str
) -> None:
    every = 1 if STRINGS > 100_000 else 5
    texts = list(read_texts(shared_data / file))[::every]
    found = [ids.tolist() for ids in by_words(mistral).encode(texts)]
    assert found == [ids.tolist() for ids in mistral.encode(texts)]


def test_a_table_that_begins_anew_gives_the_same(mistral: SentencePieceTokenizer) -> None:
    words = WordEncoder(mistral.files()["tokenizer.model"])
    words._table = WordTable(words._table._encode, 1)
    filled = " ".join(f"{n:x}" for n in range(150_000))
    small = ["one two", "three  one\nfour", filled[:4_000]]
    before = [ids.tolist() for ids in words.encode(small)]
    kept = words._table._count
    long = words.encode([filled])[0]
    assert kept < words._table._count <= 2**16, "it began anew, and has room"
    assert np.array_equal(long, mistral.encode([filled])[0])
    assert [ids.tolist() for ids in words.encode(small)] == before


def letters(words: list[bytes]) -> list[list[int]]:
    return [[*word, 0] for word in words]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"\0", b"1")))))
def test_a_table_gives_the_ids_of_each_word(batches: list[list[bytes]]) -> None:
    asked: list[bytes] = []

    def encode(words: list[bytes]) -> list[list[int]]:
        asked.extend(words)
        return letters(words)

    table = WordTable(encode)
    for words in batches:
        starts = np.cumsum([0, *map(len, words)])[:-1]
        ids, counts = table.encode(b"".join(words), starts)
        assert ids.tolist() == [i for one in letters(words) for i in one]
        assert counts.tolist() == [len(word) + 1 for word in words]
    assert len(asked) == len(set(asked)), "each different word is encoded once"
    assert set(asked) == {word for words in batches for word in words}


def test_words_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordTable, "_hash", lambda _, keys: np.full(keys.shape[1], 2**19 - 3))
    table = WordTable(letters)
    words = [f"{number:08}".encode() for number in range(200)]
    for some in (words[:3], words, words[::-1]):
        ids, _ = table.encode(b"".join(some), np.arange(0, 8 * len(some), 8))
        assert ids.tolist() == [i for one in letters(some) for i in one]
    assert len(table._others) == 200 - word_table._TRIES, "a search ends"


def test_long_words_do_not_fill_the_memory() -> None:
    table = WordTable(lambda words: [[len(word)] for word in words])
    for number in range(40):
        ids, _ = table.encode(b"%d" % number * 2**19, np.array([0]))
        assert ids.tolist() == [2**19 * len(str(number))]
    assert sum(map(len, table._others)) < 2 * word_table._BYTES


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


def test_pairs_are_those_of_pieces_with_text(mistral: SentencePieceTokenizer) -> None:
    found = pairs(proto.ModelProto.FromString(mistral.files()["tokenizer.model"]))
    assert {"th", " t", "  "} <= found
    assert not {"e,", "<s", "0x"} & found, "byte and control pieces are not of the text"


def test_texts_that_words_do_not_take_are_among_others(mistral: SentencePieceTokenizer) -> None:
    texts = ["one two " * 40, "a\u2581b", "", "nul\0 in it", "three " * 50]
    assert list(map(WordEncoder.takes, texts)) == [True, False, True, False, True]
    assert [ids.tolist() for ids in by_words(mistral).encode(texts)] == library(mistral, texts)


def test_words_between_special_tokens_have_the_librarys_ids(
    mistral: SentencePieceTokenizer,
) -> None:
    part = "[INST] words, and more words;\n" * 20
    texts = [f"<s>{part}</s>{part}", "", "</s>", part, f"a\u2581b<s>{part}"]
    (one,) = library(mistral, [part])
    (odd,) = library(mistral, ["a\u2581b"])
    expected = [[1, *one, 2, *one], [], [2], one, [*odd, 1, *one]]
    found = by_words(mistral).encode(texts, special=True)
    assert [ids.tolist() for ids in found] == expected
    assert {ids.dtype for ids in found} == {np.dtype(np.int32)}


def test_half_a_surrogate_pair_is_the_librarys_error(mistral: SentencePieceTokenizer) -> None:
    for text in ("\ud800", "word " * 100 + "\udc00"):
        with pytest.raises(TypeError, match="must be str or bytes"):
            by_words(mistral).encode([text])


@pytest.mark.parametrize("forgotten", ["e", " t", "ing"])
def test_words_that_are_wrong_are_found_before_they_are_used(
    mistral: SentencePieceTokenizer,
    forgotten: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fewer(model: Any) -> set[str]:
        return {pair for pair in pairs(model) if forgotten[0] not in pair}

    monkeypatch.setattr(sentencepiece_words, "pairs", fewer)
    with pytest.raises(Refused, match="encodes words otherwise than texts"):
        WordsEncoder(mistral)
    with pytest.raises(InputError, match="--encoder words cannot encode for tokenizer 'mistral'"):
        choose(mistral, "words", text_bytes=0)


def test_a_tokenizer_of_another_kind_has_no_words() -> None:
    with pytest.raises(InputError, match="it is not for bytes tokenizers"):
        choose(load("bytes"), "words", text_bytes=0)


def test_a_conversion_by_words_is_the_librarys(
    mistral: SentencePieceTokenizer, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"{text} {number}"}) for number, text in enumerate(TEXTS * 40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"text": "a\u2581b \0"})]))
    found = {}
    for encoder in ("library", "words", "verify"):
        report = convert_here(
            tmp_path / "a.jsonl",
            output=tmp_path / encoder,
            source="a",
            tokenizer=mistral,
            workers=1,
            encoder=encoder,
        )
        assert report.encoding is not None
        assert report.encoding.encoder == ("words 1" if encoder != "library" else LIBRARY)
        found[encoder] = tree(tmp_path / encoder)
    assert found["library"] == found["words"] == found["verify"]
