"""Byte-level BPE trained here: the merges of the library, and two exports with the same ids."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers as hf
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.cli import cli
from jaxdata.errors import InputError, MissingExtra
from jaxdata.installing import install_command
from jaxdata.tokenizers import Tokenizer, byte_level_training, word_counts
from jaxdata.tokenizers.byte_level_training import Corpus
from jaxdata.tokenizers.byte_pairs import BYTES, learn_merges
from jaxdata.tokenizers.text_cuts import SPLITS, split_rule
from jaxdata.tokenizers.word_counts import WordCounts
from tests.tokenizers.test_tokenizers import TEXTS

SPECIAL = ["<|reserved_0|>", "<|fim_prefix|>"]
SIZE = 600
Both = tuple[Tokenizer, Tokenizer]


def train(folder: Path, **options: Any) -> Both:
    size = tokenizers.train_byte_level(TEXTS, folder, **{"vocab_size": SIZE} | options)
    assert size == sum(len(text.encode()) for text in TEXTS)
    return tokenizers.load(f"hf:{folder}"), tokenizers.load(f"tiktoken:{folder}")


@pytest.fixture(scope="module", params=[*SPLITS, "padded"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("trained") / "folder"
    if request.param == "padded":
        return train(folder, special=SPECIAL, pad_id=3)
    return train(folder, special=SPECIAL, split=request.param)


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


def test_both_exports_give_the_same_ids_for_real_text(both: Both, shared_data: Path) -> None:
    names = json.loads((shared_data / "unicode/blns.json").read_text())
    for text in (*names, *TEXTS, "\n".join(TEXTS)):
        one, other = (tokenizer.encode([text])[0].tolist() for tokenizer in both)
        assert one == other


def test_both_exports_have_the_same_special_tokens(both: Both) -> None:
    one, other = both
    assert dict(one.special_tokens) == dict(other.special_tokens)
    assert (one.eod_id, one.pad_id, one.vocab_size) == (other.eod_id, other.pad_id, SIZE)
    assert one.token_bytes.tolist() == other.token_bytes.tolist()
    for text, i in one.special_tokens.items():
        assert [tokenizer.encode([text], special=True)[0].tolist() for tokenizer in both] == [
            [i],
            [i],
        ]


def test_long_texts_are_cut_between_words(both: Both) -> None:
    text = " some more words, 1234 of them" * 50
    for tokenizer in both:
        first, *rest = tokenizer.cuts(text, 100)
        assert rest
        ids = [*tokenizer.encode([first]), *tokenizer.encode(rest, continuing=True)]
        assert [i for one in ids for i in one.tolist()] == tokenizer.encode([text])[0].tolist()


def test_special_tokens_are_last_and_the_end_of_documents_first_of_them(tmp_path: Path) -> None:
    one, _ = train(tmp_path / "t", special=SPECIAL)
    assert dict(one.special_tokens) == {
        "<|endoftext|>": SIZE - 3,
        "<|reserved_0|>": SIZE - 2,
        "<|fim_prefix|>": SIZE - 1,
    }
    assert (one.eod_id, one.pad_id) == (SIZE - 3, None)


@pytest.mark.parametrize("pad_id", [0, 7, 300, SIZE - 2, SIZE - 1])
def test_the_padding_token_has_the_id_asked_for(tmp_path: Path, pad_id: int) -> None:
    plain, _ = train(tmp_path / "plain", vocab_size=SIZE - 1)
    for tokenizer in train(tmp_path / "padded", pad_id=pad_id):
        assert tokenizer.pad_id == pad_id
        assert tokenizer.token_id("<pad>") == pad_id
        assert tokenizer.decode([pad_id]) == ""
        moved = [i + (i >= pad_id) for i in plain.encode(TEXTS[:1])[0].tolist()]
        assert tokenizer.encode(TEXTS[:1])[0].tolist() == moved
        assert tokenizer.eod_id == plain.eod_id + (plain.eod_id >= pad_id)


@pytest.mark.parametrize(("split", "digits"), [("gpt4", 2), ("gpt2", 1), ("gpt4o", 3)])
def test_tokens_hold_as_many_digits_as_asked(tmp_path: Path, split: Any, digits: int) -> None:
    for tokenizer in train(tmp_path / "t", split=split, digits=digits):
        (ids,) = tokenizer.encode(["31415926535"])
        assert max(len(tokenizer.decode([i])) for i in ids) == digits
    assert split_rule(split, digits).count(rf"\p{{N}}{{1,{digits}}}") == 1


def test_training_is_deterministic(tmp_path: Path) -> None:
    train(tmp_path / "a", special=SPECIAL)
    train(tmp_path / "b", special=SPECIAL)
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    one, _ = train(tmp_path / "t", pad_id=4)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "t", local_files_only=True)
    assert (found.eos_token_id, found.pad_token_id) == (one.eod_id, 4)
    assert found.encode(TEXTS[0]) == one.encode(TEXTS[:1])[0].tolist()


def test_tiktoken_reads_the_ranks(tmp_path: Path) -> None:
    one, _ = train(tmp_path / "t")
    settings = json.loads((tmp_path / "t/encoding.json").read_text())
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "t/ranks.tiktoken"))
    theirs = tiktoken.Encoding(
        "t",
        pat_str=settings["pattern"],
        mergeable_ranks=ranks,
        special_tokens=settings["special_tokens"],
    )
    assert theirs.encode_ordinary(TEXTS[0]) == one.encode(TEXTS[:1])[0].tolist()


def slow_merges(words: dict[bytes, int], count: int) -> list[tuple[int, int]]:
    """Merging by the book: count all pairs, merge the most frequent, again."""
    laid = [([BYTES.index(byte) for byte in word], n) for word, n in words.items()]
    merges: list[tuple[int, int]] = []
    while len(merges) < count:
        counts: Counter[tuple[int, int]] = Counter()
        for symbols, n in laid:
            for pair in pairwise(symbols):
                counts[pair] += n
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for symbols, _ in laid:
            at = 0
            while at + 1 < len(symbols):
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at : at + 2] = [255 + len(merges)]
                at += 1
    return merges


@given(
    st.dictionaries(
        st.text("aab", min_size=1, max_size=12).map(str.encode), st.integers(1, 5), max_size=8
    ),
    st.integers(0, 40),
)
@example({b"aaaaa": 1, b"aaaa": 2, b"baaab": 3}, 9)
@example({b"a": 1}, 3)
def test_merges_are_those_of_counting_again_each_time(words: dict[bytes, int], count: int) -> None:
    assert learn_merges(words, count) == slow_merges(words, count)


def test_counts_do_not_end_at_32_bits() -> None:
    assert learn_merges({b"ab": 2**40, b"cd": 2**40 + 1}, 1) == [(66, 67)]


SPLITTING = ["a", "Zq", "'s", "'LL", "'", "don't", " ", "  ", "\n", "\r\n", "\t", "1", "12345"]
SPLITTING += [
    "é",
    "e\u0301",
    "大きさ",
    "١٢",
    "\u00a0",
    "\x85",
    "\x1c",
    "!",
    "_x",
    "/\n",
    "\u017f",
    "\u212a",
]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("digits", [None, 1, 2])
@given(st.lists(st.lists(st.one_of(st.sampled_from(SPLITTING), st.text())).map("".join)))
@example(["a'b 1'2 x'S", "", "long " * 30, "i" * 200, "no spaces " + "大" * 90, "a" * 70 + "é"])
@settings(max_examples=60)
def test_words_are_those_that_the_library_splits(
    split: str, digits: int | None, texts: list[str]
) -> None:
    rule = split_rule(split, digits)
    library = hf.pre_tokenizers.Split(hf.Regex(rule), "isolated")
    expected = Counter(
        word.encode() for text in texts for word, _ in library.pre_tokenize_str(text)
    )
    counts = WordCounts(rule)
    counts.add(texts)
    assert counts.words() == expected


def test_words_of_many_texts_are_counted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = WordCounts(split_rule("gpt4", 2)), WordCounts(split_rule("gpt4", 2))
    whole.add(TEXTS)
    monkeypatch.setattr(word_counts, "_AT_ONCE", 100)
    monkeypatch.setattr(word_counts, "_MOST", 50)
    cut.add(TEXTS)
    assert cut.words() == whole.words()


@pytest.mark.parametrize("split", SPLITS)
def test_long_texts_have_the_same_words(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = (WordCounts(split_rule(split, 2)) for _ in range(2))
    whole.add(TEXTS)
    monkeypatch.setattr(byte_level_training, "_PART", 20)
    parts = list(Corpus(TEXTS, None))
    assert len(parts) > 10 * len(TEXTS)
    cut.add(parts)
    assert cut.words() == whole.words()


def test_of_too_many_words_the_rarest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_AT_ONCE", 100), ("_MOST", 50), ("_MOST_WORDS", 100)):
        monkeypatch.setattr(word_counts, name, value)
    counts = WordCounts(split_rule("gpt4", 2))
    counts.add(f"the word{'xyz'[n % 3] * (n // 3)} and" for n in range(400))
    found = counts.words()
    assert len(found) < 200
    assert found[b" and"] == found[b"the"] == 400


def test_texts_are_read_once_and_not_kept(tmp_path: Path) -> None:
    taken = []
    texts = (taken.append(text) or text for text in TEXTS * 100)
    size = tokenizers.train_byte_level(texts, tmp_path / "t", vocab_size=350, max_bytes=9_000)
    assert 9_000 <= size < 14_000
    assert len(taken) < 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab_size": 257}, r"vocab_size=257; expected more than 257: 256 bytes, and 1 special"),
        (
            {"vocab_size": 50_000},
            r"cannot train a vocabulary of 50000 on [\d,]+ bytes.*smaller --v",
        ),
        ({"pad_id": SIZE}, rf"pad_id={SIZE}; expected an id from 0 to {SIZE - 1}"),
        ({"pad_id": -1}, r"pad_id=-1; expected an id from 0"),
        ({"digits": 0}, r"digits=0; expected 1 to 9, or None"),
        ({"split": "gpt5"}, r"split='gpt5'; expected one of gpt2, gpt4, gpt4o"),
        ({"special": "<a>"}, r"special='<a>': expected a list of texts"),
        ({"special": ["<a>", "<a>"]}, r"special token '<a>': it is there twice"),
        ({"special": ["\n"]}, r"special token '\\n': expected a printable text"),
        ({"special": ["in"]}, r"special token 'in': a word of the corpus; give another text"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        tokenizers.train_byte_level(TEXTS, tmp_path / "t", **{"vocab_size": SIZE} | options)
    assert not (tmp_path / "t").exists()


def test_no_text_and_a_file_in_the_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text to train a tokenizer on"):
        tokenizers.train_byte_level([], tmp_path / "t")
    (tmp_path / "t").write_text("mine")
    with pytest.raises(InputError, match="t is a file; expected a folder"):
        tokenizers.train_byte_level(TEXTS, tmp_path / "t")
    assert (tmp_path / "t").read_text() == "mine"


def test_an_error_of_the_texts_is_given_on(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "one"
        raise InputError("line 2 is broken")

    with pytest.raises(InputError, match="line 2 is broken"):
        tokenizers.train_byte_level(broken(), tmp_path / "t")


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("hf"))):
        tokenizers.train_byte_level(TEXTS, tmp_path / "t")


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["tokenizer", "train", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


def test_the_command_trains_both_kinds(corpus: Path, tmp_path: Path) -> None:
    sizes = ("--vocab-size", 500, "--pad-id", 4, "--special", "<a>,<b>")
    code, said = command(
        *(corpus, "--output", tmp_path / "t", "--model-type", "byte-level", *sizes),
        *("--split", "gpt2", "--digits", 1),
    )
    assert code == 0, said
    assert f"use it: jaxdata convert INPUT... --tokenizer hf:{tmp_path / 't'}" in said
    rule = json.loads((tmp_path / "t/encoding.json").read_text())["pattern"]
    assert rule == split_rule("gpt2", 1)
    code, said = command(corpus, "--output", tmp_path / "m.model", *sizes)
    assert code == 0, said
    found = [
        tokenizers.load(spec)
        for spec in (f"hf:{tmp_path / 't'}", f"sentencepiece:{tmp_path / 'm.model'}")
    ]
    assert [(one.pad_id, one.vocab_size) for one in found] == [(4, 500), (4, 500)]
    assert all(one.token_id("<b>") is not None for one in found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--split", "gpt2"], "--split goes with --model-type byte-level"),
        (
            ["--model-type", "byte-level", "--character-coverage", "0.9"],
            "--character-coverage goes with --model-type bpe or unigram",
        ),
        (["--output", "."], "--output . is a folder; expected a file"),
    ],
)
def test_options_of_the_other_kind_are_refused(
    corpus: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    code, said = command(corpus, "--output", tmp_path / "t", *arguments)
    assert code == 2
    assert says in said
    assert not (tmp_path / "t").exists()
