"""Special tokens in a text, texts that go on, and long texts in parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.tokenizers import CannotEncode, Tokenizer
from jaxdata.tokenizers.base import cut_between_words
from tests.tokenizers.test_tokenizers import FILES, open_one

CHAT = "<s>[INST] Hello </s><|endoftext|> you\n<|endofprompt|>!"
CUTTING = {"mistral", "gpt2-hf", "gpt2-files", "neox", "gpt2", "cl100k"}


@pytest.fixture(scope="module")
def loaded(shared_data: Path) -> dict[str, Tokenizer]:
    return {name: open_one(shared_data, name) for name in FILES}


@pytest.mark.parametrize("name", ["mistral", "gpt2-hf", "gpt2", "cl100k"])
@given(parts=st.lists(st.text(), min_size=1, max_size=5))
@settings(max_examples=40)
def test_continuing_texts_add_nothing_of_their_own(
    loaded: dict[str, Tokenizer], name: str, parts: list[str]
) -> None:
    tokenizer = loaded[name]
    if name == "mistral":  # takes a U+2581 of the text for a space
        parts = [part.replace("\u2581", "_") for part in parts]
    ids = [tokenizer.encode(parts[:1])[0], *tokenizer.encode(parts[1:], continuing=True)]
    assert tokenizer.decode(np.concatenate(ids)) == "".join(parts)


def test_a_continuing_text_has_no_space_in_front(loaded: dict[str, Tokenizer]) -> None:
    mistral, t5 = loaded["mistral"], loaded["t5"]
    for tokenizer in (mistral, t5):
        for text in ("Hello there", ")", "a", "(x"):
            (plain,), (going_on,) = (
                tokenizer.encode([text]),
                tokenizer.encode([text], continuing=True),
            )
            first = tokenizer.encode(["Q:"])[0]
            assert tokenizer.decode([*first, *going_on]) == "Q:" + text
            assert tokenizer.decode([*first, *plain]) == "Q: " + text


def check_parts(tokenizer: Tokenizer, text: str, size: int) -> bool:
    """Whether there are several."""
    first, *rest = tokenizer.cuts(text, size)
    assert "".join([first, *rest]) == text
    ids = [*tokenizer.encode([first]), *tokenizer.encode(rest, continuing=True)]
    assert np.array_equal(np.concatenate(ids), tokenizer.encode([text])[0])
    return bool(rest)


@given(st.text(alphabet="ab \n.", max_size=80), st.integers(0, 20))
def test_cuts_lose_nothing_and_keep_to_the_size(text: str, size: int) -> None:
    parts = cut_between_words(text, size)
    assert "".join(parts) == text
    assert all(len(part) >= size for part in parts[:-1])
    assert all(part[0] == " " and part[1].isalpha() for part in parts[1:])


def test_a_splitting_rule_that_is_not_known_is_not_cut(tmp_path: Path) -> None:
    library = hf.Tokenizer(hf.models.BPE({"a": 0, " ": 1, "b": 2, "<eos>": 3}, []))
    words = "one two three four"
    for rule, cuts in (
        (hf.pre_tokenizers.ByteLevel(add_prefix_space=False), True),
        (hf.pre_tokenizers.Split(hf.Regex(r"\w+ \w+"), "isolated"), False),
        (hf.pre_tokenizers.Whitespace(), False),
    ):
        library.pre_tokenizer = rule
        library.save(str(tmp_path / "tokenizer.json"))
        tokenizer = tokenizers.load(f"hf:{tmp_path}")
        assert (len(tokenizer.cuts(words, 3)) > 1) == cuts
    library.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_tokens(["one two"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert tokenizers.load(f"hf:{tmp_path}").cuts(words, 3) == [words]


def test_bytes_are_cut_anywhere() -> None:
    tokenizer = tokenizers.load("bytes")
    assert tokenizer.cuts("größe", 2) == ["gr", "öß", "e"]
    assert tokenizer.cuts("", 2) == [""]
    assert tokenizer.special_tokens == {}


def test_a_text_that_tiktoken_cannot_split_is_refused(loaded: dict[str, Tokenizer]) -> None:
    with pytest.raises(CannotEncode, match=r"'cl100k_base' cannot encode a text of 1,000,001"):
        loaded["cl100k"].encode(["fine", " " * 10**6 + "a"])


@pytest.mark.parametrize("name", FILES)
def test_special_tokens_are_found_where_asked_only(
    shared_data: Path, loaded: dict[str, Tokenizer], name: str
) -> None:
    tokenizer = loaded[name]
    found = tokenizer.encode([CHAT], special=True)[0].tolist()
    written = {i for text, i in tokenizer.special_tokens.items() if text in CHAT}
    assert written
    assert written <= {*found}
    assert not written & {*tokenizer.encode([CHAT])[0].tolist()}
    if name in ("gpt2-hf", "neox"):
        library = hf.Tokenizer.from_file(str(shared_data / "tokenizers" / FILES[name][3:]))
        assert found == library.encode(CHAT, add_special_tokens=False).ids


PARTS = ["a", "Ab", "it's", "'s", "S'", " ", "  ", "\n", "1", "\u00e9", "e\u0301", "!", "_"]


@pytest.mark.parametrize("name", FILES)
@given(text=st.lists(st.sampled_from(PARTS) | st.text(), max_size=60).map("".join))
@settings(max_examples=40)
def test_parts_of_a_text_have_its_tokens(
    loaded: dict[str, Tokenizer], name: str, text: str
) -> None:
    for size in (0, 40):
        check_parts(loaded[name], text, size)


@pytest.mark.parametrize("name", FILES)
def test_parts_of_naughty_strings_have_their_tokens(
    shared_data: Path, loaded: dict[str, Tokenizer], name: str
) -> None:
    names = "\n".join(json.loads((shared_data / "unicode/blns.json").read_text()))
    assert check_parts(loaded[name], names, 200) == (name in CUTTING)
