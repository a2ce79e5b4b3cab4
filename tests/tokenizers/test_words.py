"""SentencePiece BPE a word at a time: the ids of the library, whatever the text."""

import io
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.encoders import words
from jaxdata.tokenizers.encoders.choice import attach, choose
from jaxdata.tokenizers.encoders.words import JoinedPairs, WordsEncoder, WordTable, pairs
from jaxdata.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.tokenizers.test_tokenizers import FILES
from tests.tokenizers.test_training import TEXTS

STRINGS = int(os.environ.get("JAXDATA_TEST_STRINGS", 2_000))  # 300,000 before a release
LOSSLESS: dict[str, Any] = {"normalization_rule_name": "identity", "byte_fallback": True}
LOSSLESS |= {"add_dummy_prefix": False, "remove_extra_whitespaces": False}


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"max_sentence_length": 10_000, "byte_fallback": True},
    "dummy prefix": {**LOSSLESS, "add_dummy_prefix": True},
    "symbols": {**LOSSLESS, "user_defined_symbols": ["<a b>", "é!", "\n\n", "▁x", " y"]},
    "normalised symbols": {"user_defined_symbols": ["ﬁ", "Å", "a b", "!▁"], "byte_fallback": True},
    "control": {**LOSSLESS, "control_symbols": ["<pad>", "z", "the"]},
    "unused": {**LOSSLESS, "split_by_whitespace": False},
}


def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    given = {"model_type": "bpe", "vocab_size": 700, "num_threads": 1, "minloglevel": 3} | options
    lines = iter("\n".join(TEXTS).split("\n"))
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **given)
    return model.getvalue()


def changed(model: bytes, change: Callable[[Any], None]) -> bytes:
    read = proto.ModelProto.FromString(model)
    change(read)
    return bytes(read.SerializeToString())


def without_every_third(model: Any) -> None:
    """No piece that comes of merges is given, and so the parts that it was merged from are."""
    for piece in [piece for piece in model.pieces if len(piece.piece) > 1][270::3]:
        piece.type = proto.ModelProto.SentencePiece.UNUSED


def library(tokenizer: SentencePieceTokenizer, texts: Sequence[str]) -> list[list[int]]:
    """What the library itself gives, a text at a time."""
    bare = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.files()["tokenizer.model"])
    return [bare.encode(text) for text in texts]


def check(tokenizer: SentencePieceTokenizer, texts: Sequence[str]) -> None:
    taken = [text for text in texts if WordsEncoder.takes(text)]
    found = [ids.tolist() for ids in WordsEncoder(tokenizer).encode(taken)]
    for text, ids, expected in zip(taken, found, library(tokenizer, taken), strict=True):
        assert ids == expected, text


def strings(tokenizer: SentencePieceTokenizer, count: int, seed: int) -> list[str]:
    """Texts of pieces, of parts of pieces, of what is near them, and of any characters."""
    draw = random.Random(seed)
    model = proto.ModelProto.FromString(tokenizer.files()["tokenizer.model"])
    pieces = [piece.piece.replace("\u2581", " ") for piece in model.pieces]
    near = [" ", "  ", "\n", "\t", "'s", "1", "é", "e\u0301", "\u00a0", "\u3000", "ﬁ", "🦥", "￼"]
    near += ["a", "the", " the", "é!", "<a b>", "12", "\u00c5", "fi", "x y"]

    def part() -> str:
        kind = draw.randrange(8)
        if kind < 4:
            piece = draw.choice(pieces)
            return piece if kind < 2 else piece[draw.randrange(len(piece)) :]
        if kind < 7:
            return draw.choice(near)
        code = draw.randrange(1, draw.choice([128, 0x2000, 0x11000, 0x110000]))
        return chr(code) if not 0xD800 <= code < 0xE000 else "?"

    return ["".join(part() for _ in range(draw.randrange(24))) for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_strings_of_pieces_have_the_librarys_ids(name: str) -> None:
    model = trained(**MODELS[name])
    if name == "unused":
        model = changed(model, without_every_third)
    small = SentencePieceTokenizer({"tokenizer.model": model}, name=name)
    check(small, ["", *strings(small, STRINGS // 4, 1)])
    step = 1 if STRINGS > 100_000 else 997
    codes = [code for code in range(1, 0x110000, step) if not 0xD800 <= code < 0xE000]
    for at in range(0, len(codes), 997):
        check(small, [by.join(map(chr, codes[at : at + 997])) for by in "a "])


def as_they_are(model: Any) -> None:
    model.normalizer_spec.escape_whitespaces = False


def test_what_is_not_proven_goes_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = {**LOSSLESS, "treat_whitespace_as_suffix": True}
    says = "it does not write spaces at the start of words"
    lossless = trained(**LOSSLESS)

    def reason(model: bytes) -> str:
        tokenizer = SentencePieceTokenizer({"tokenizer.model": model}, name="m")
        chosen = choose(tokenizer, "auto", text_bytes=1)
        attach(tokenizer, chosen)
        assert (tokenizer.guard is None) == bool(chosen.reason)
        found = tokenizer.encode(TEXTS[:2])
        assert [ids.tolist() for ids in found] == library(tokenizer, TEXTS[:2])
        return chosen.reason.removeprefix("words: ")

    for model, expected in (
        (lossless, ""),
        (trained(model_type="unigram", **LOSSLESS), "it is a unigram model, not BPE"),
        (trained(), "it has no byte_fallback, so that unknown characters are one token a run"),
        (trained(**suffix), says),
        (changed(lossless, as_they_are), says),
    ):
        assert reason(model) == expected
    fewer = {pair for pair in pairs(proto.ModelProto.FromString(lossless)) if "e" not in pair}
    monkeypatch.setattr(words, "pairs", lambda _: fewer)
    assert reason(lossless) == "this version of sentencepiece encodes words otherwise than texts"


def test_special_tokens_between_words_and_what_words_do_not_take_have_the_librarys_ids(
    shared_data: Path,
) -> None:
    file = shared_data / "tokenizers" / FILES["mistral"].partition(":")[2]
    mistral = SentencePieceTokenizer({"tokenizer.model": file.read_bytes()}, name="mistral")
    attach(mistral, choose(mistral, "words", text_bytes=0))
    part = "[INST] words, and more words;\n" * 20
    texts = [f"<s>{part}</s>{part}", "", "</s>", part, f"a\u2581b<s>{part}"]
    one, odd = library(mistral, [part, "a\u2581b"])
    found = mistral.encode(texts, special=True)
    assert [ids.tolist() for ids in found] == [[1, *one, 2, *one], [], [2], one, [*odd, 1, *one]]
    texts = ["a\u2581b", "", "nul\0 in it", *strings(mistral, STRINGS // 8, 2)]
    assert [ids.tolist() for ids in mistral.encode(texts)] == library(mistral, texts)
    with pytest.raises(CannotEncode, match=r"a NUL or U\+2581"):
        WordsEncoder(mistral).encode(["fine", "a\0"])
    with pytest.raises(TypeError, match="must be str or bytes"):
        mistral.encode(["word " * 100 + "\udc00"])


@given(st.sets(st.text("abcde \u00e9", min_size=2, max_size=2), max_size=12), st.data())
@settings(max_examples=60)
def test_words_start_where_no_pair_is_joined(pairs: set[str], data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("abcde \u00e9", max_size=9), max_size=4))
    text = "".join(texts)
    begins = [sum(map(len, texts[:n])) for n in range(len(texts) + 1)]
    expected = [at for at in range(len(text)) if at in begins or text[at - 1 : at + 1] not in pairs]
    assert JoinedPairs(pairs).words(text, np.array(begins, np.int64)).tolist() == expected


WORDS = st.text("ab", min_size=1, max_size=3) | st.sampled_from(["w" * n for n in (15, 16, 17, 40)])
BATCH = st.lists(WORDS | st.integers(0, 60).map(str), max_size=20)


@given(st.lists(BATCH, max_size=6), st.integers(6, 14), st.sampled_from([2, 8, 2**20]))
@settings(max_examples=80)
def test_a_table_keeps_words_until_full(batches: list[list[str]], room: int, slots: int) -> None:
    """Four words are taken at a time here; a full table forgets all; words of one hash differ."""
    asked: list[str] = []
    expected: list[str] = []
    kept: set[str] = set()

    def encode(words: list[bytes]) -> list[list[int]]:
        asked.extend(word.decode() for word in words)
        return [[*word] * 3 for word in words]

    with mock.patch.multiple(words, _WORDS_AT_ONCE=4, _SLOTS=slots):
        table = WordTable(encode, room)
        for some in batches:
            data = "".join(some).encode()
            starts = np.array([len("".join(some[:n])) for n in range(len(some))], np.int64)
            ids, counts = table.encode(data, starts)
            assert ids.tolist() == [i for word in some for i in [*word.encode()] * 3]
            assert counts.tolist() == [3 * len(word) for word in some]
            assert (ids.dtype, counts.dtype) == (np.int32, np.int64)
            for first in range(0, len(some), 4):
                part = some[first : first + 4]
                if len(kept) + len(part) + 2 > room:
                    kept = set()
                expected += [word for word in dict.fromkeys(part) if word not in kept]
                kept |= {*part}
    assert sorted(asked) == sorted(expected), "each once, until the table is full"


def test_words_are_spread_over_the_slots_and_others_are_kept_in_a_dict() -> None:
    for word, most in (("{:x}", 4_000), ("{0:08x}{0:08x}", 8_000)):
        table = WordTable(lambda words: [[1]] * len(words))
        some = [word.format(number).encode() for number in range(60_000)]
        table.encode(b"".join(some), np.cumsum([0, *map(len, some)])[:-1])
        assert len(table._others) < most, "words of one slot take ten times as long"
        assert np.count_nonzero(table._slots) + len(table._others) == 60_000
    table = WordTable(lambda words: [[1]] * len(words))
    table.encode(b"x" * 66, np.array([0, 15, 31, 48]))
    assert {*table._others} == {b"x" * 17, b"x" * 18}, "those of more than 16 bytes"


def test_a_table_of_too_many_bytes_begins_anew() -> None:
    sizes: list[int] = []
    table = WordTable(lambda words: [sizes.append(len(words[0])) or [1]])  # type: ignore[func-returns-value]
    for more, known in ((100, [50, 51, 50, 51]), (101, [50, 51])):
        sizes.clear()
        table._clear()
        with mock.patch.object(words, "_BYTES", 4 * 2**16 + more):
            for size in (50, 50, 51, 50, 50, 51):
                table.encode(b"%03d" % size + b"." * (size - 3), np.array([0]))
        assert sizes == known, "after 101 bytes of long words"
