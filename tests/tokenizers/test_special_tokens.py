"""Special tokens that training reserves: one id each, which no plain text is encoded to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.tokenizers import Tokenizer
from tests.tokenizers.test_tokenizers import open_one

FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
SPECIAL = (*FIM, "<|im_start|>", "<|im_end|>", "<\uff5cfim\u2581hole\uff5c>", "<pad>")
# Every text spells them, as text about models does.
TEXTS = [
    f"def f{n}(x):\n    return x + {n}  # {SPECIAL[n % len(SPECIAL)] * 5}\n" for n in range(300)
]


def train(file: Path, **options: Any) -> Tokenizer:
    tokenizers.train(TEXTS, file, **{"vocab_size": 400, "special": SPECIAL} | options)
    return tokenizers.load(f"sentencepiece:{file}")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("trained") / "tokenizer.model"
    return train(file, model_type=request.param, vocab_size=340)


_SPELLED = st.lists(st.one_of(st.sampled_from([*SPECIAL, "</s>", "<unk>"]), st.text())).map("".join)


@given(_SPELLED)
@example("".join(SPECIAL))
@example("<|fim_prefix|")
def test_text_that_spells_them_is_text(trained: Tokenizer, text: str) -> None:
    (ids,) = trained.encode([text])
    assert not set(ids.tolist()) & {0, 1, 2, *map(trained.token_id, SPECIAL)}
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())


def test_without_them_a_model_is_as_before(tmp_path: Path) -> None:
    train(tmp_path / "none", special=())
    tokenizers.train(TEXTS, tmp_path / "default", vocab_size=400)
    assert (tmp_path / "none").read_bytes() == (tmp_path / "default").read_bytes()


@pytest.mark.parametrize("name", ["mistral", "neox", "cl100k"])
def test_special_tokens_are_added_to_any_vocabulary(shared_data: Path, name: str) -> None:
    was = open_one(shared_data, name)
    own = next(iter(was.special_tokens))
    made = was.with_special(["<|sep|>", own, "<\u2581x>", "<|sep|>"])
    added = {"<|sep|>": was.vocab_size, "<\u2581x>": was.vocab_size + 1}
    assert made.vocab_size == was.vocab_size + 2, "once each; a token that is there stays"
    assert {**made.special_tokens} == {**was.special_tokens, **added}
    assert (made.eod_id, made.bos_id, made.pad_id) == (was.eod_id, was.bos_id, was.pad_id)
    spelled = ["a <|sep|> b", "<|sep|><\u2581x>", "def f():\n\treturn 'gr\u00f6\u00dfe'", ""]
    for one, other in zip(made.encode(spelled), was.encode(spelled), strict=True):
        assert one.tolist() == other.tolist(), "plain text stays plain text"
    for text, i in added.items():
        assert made.encode([text], special=True, continuing=True)[0].tolist() == [i]
        assert (made.decode([i]), made.token_bytes[i]) == ("", 0)
    assert made.token_bytes[: was.vocab_size].tolist() == was.token_bytes.tolist()
    again = tokenizers.restore(made.kind, made.files(), eod_id=made.eod_id, name=name)
    assert {**again.special_tokens} == {**made.special_tokens}
    assert made.with_special(["<|sep|>"]) is made


def test_roles_may_name_added_tokens(shared_data: Path) -> None:
    file = shared_data / "tokenizers/gpt2/tokenizer.json"
    made = tokenizers.load(f"hf:{file}", eod="<e>", pad="<p>", add_special=["<p>", "<e>"])
    assert (made.pad_id, made.eod_id) == (50_257, 50_258)
    with pytest.raises(InputError, match="tokenizer 'bytes' has no file to keep '<p>' in"):
        tokenizers.load("bytes", add_special=["<p>"])
    with pytest.raises(InputError, match="special token '': expected a text"):
        tokenizers.load(f"hf:{file}", add_special=[""])


def test_each_has_one_id_in_the_order_given(trained: Tokenizer) -> None:
    ids = [trained.token_id(text) for text in SPECIAL]
    assert ids == list(range(3, 3 + len(SPECIAL)))
    for text, i in zip(SPECIAL, ids, strict=True):
        assert trained.encode([text], special=True)[0].tolist() == [i]
        assert trained.special_tokens[text] == i
        assert trained.decode([i]) == ""
        assert trained.token_bytes[i] == 0
    assert (trained.unk_id, trained.bos_id, trained.eod_id) == (0, 1, 2)
    assert trained.pad_id == trained.token_id("<pad>"), "reserved, so it is the padding token"
    assert trained.vocab_size == 340
    inside = [trained.encode([text[1:-1]])[0] for text in FIM]
    assert all(len(ids) > len("fim_") for ids in inside), "nothing is learned of their texts"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"special": ["<unk>"]}, r"special token '<unk>': every model has it"),
        ({"special": ["<0x0A>"]}, r"special token '<0x0A>': every model has it"),
        ({"special": ["<a>", "<b>", "<a>"]}, r"special token '<a>': it is there twice"),
        ({"special": ["<a>", ""]}, r"special token '': expected a printable text"),
        ({"special": ["<a\n>"]}, r"special token '<a\\n>': expected a printable text"),
        ({"special": "<a>"}, r"special='<a>': expected a list of texts"),
        ({"pad_id": 0}, r"pad_id=0 is the id of <unk>; expected 3 or more"),
        ({"pad_id": 400}, r"pad_id=400; expected an id from 3 to 399"),
        ({"pad_id": -1}, r"pad_id=-1; expected an id from 3 to 399"),
    ],
)
def test_what_cannot_be_reserved_is_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        train(tmp_path / "m", **options)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("pad_id", "first", "special"),
    [(3, 4, FIM), (5, 3, FIM), (399, 3, FIM), (7, 3, ["<a>", "<pad>"])],
)
def test_the_padding_token_has_the_id_asked_for(
    tmp_path: Path, pad_id: int, first: int, special: Any
) -> None:
    tokenizer = train(tmp_path / "m", special=special, pad_id=pad_id)
    assert tokenizer.pad_id == tokenizer.token_id("<pad>") == pad_id
    assert tokenizer.token_id(special[0]) == first
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eod_id) == (0, 1, 2)
    (ids,) = tokenizer.encode(["<pad>"])
    assert tokenizer.decode([*ids, pad_id]) == "<pad>"
