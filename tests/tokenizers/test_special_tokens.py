"""Special tokens that training reserves: one id each, which no plain text is encoded to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import cli
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer
from tests.converter.here import run_here
from tests.tokenizers.test_tokenizers import open_one

FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
CHAT = ("<|im_start|>", "<|im_end|>")
SPECIAL = (*FIM, *CHAT, "<\uff5cfim\u2581hole\uff5c>", "<pad>")
# Every text spells them, as text about models does.
TEXTS = [
    f"def f{n}(x):\n    return x + {n}  # {SPECIAL[n % len(SPECIAL)] * 5}\n" for n in range(300)
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train(file: Path, **options: Any) -> Tokenizer:
    tokenizers.train(TEXTS, file, **{"vocab_size": 400, "special": SPECIAL} | options)
    return tokenizers.load(f"sentencepiece:{file}")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("trained") / "tokenizer.model"
    return train(file, model_type=request.param, vocab_size=340)


def test_each_has_one_id_in_the_order_given(trained: Tokenizer) -> None:
    ids = [trained.token_id(text) for text in SPECIAL]
    assert ids == list(range(3, 3 + len(SPECIAL)))
    for text, i in zip(SPECIAL, ids, strict=True):
        assert trained.encode([text], special=True)[0].tolist() == [i]
        assert trained.special_tokens[text] == i
        assert trained.decode([i]) == ""
        assert trained.token_bytes[i] == 0


def test_the_other_special_ids_stay(trained: Tokenizer) -> None:
    assert (trained.unk_id, trained.bos_id, trained.eod_id) == (0, 1, 2)
    assert trained.pad_id == trained.token_id("<pad>"), "reserved, so it is the padding token"
    assert trained.vocab_size == 340


_SPELLED = st.lists(st.one_of(st.sampled_from([*SPECIAL, "</s>", "<unk>"]), st.text())).map("".join)


@given(_SPELLED)
@example("".join(SPECIAL))
@example("<|fim_prefix|")
def test_text_that_spells_them_is_text(trained: Tokenizer, text: str) -> None:
    (ids,) = trained.encode([text])
    assert not set(ids.tolist()) & {0, 1, 2, *map(trained.token_id, SPECIAL)}
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())


def test_nothing_is_learned_of_their_texts(trained: Tokenizer) -> None:
    inside = [trained.encode([text[1:-1]])[0] for text in FIM]
    assert all(len(ids) > len("fim_") for ids in inside), "no piece holds much of one"


def test_without_them_a_model_is_as_before(tmp_path: Path) -> None:
    train(tmp_path / "none", special=())
    tokenizers.train(TEXTS, tmp_path / "default", vocab_size=400)
    assert (tmp_path / "none").read_bytes() == (tmp_path / "default").read_bytes()


@pytest.mark.parametrize(
    ("special", "says"),
    [
        (["<unk>"], r"special token '<unk>': every model has it"),
        (["<s>"], r"special token '<s>': every model has it"),
        (["<0x0A>"], r"special token '<0x0A>': it is the name of a byte"),
        (["<a>", "<b>", "<a>"], r"special token '<a>': it is there twice"),
        (["<a>", ""], r"special token '': expected a printable text"),
        (["<a\n>"], r"special token '<a\\n>': expected a printable text"),
        ("<a>", r"special='<a>': expected a list of texts"),
    ],
)
def test_what_cannot_be_reserved_is_refused(tmp_path: Path, special: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(tmp_path / "m", special=special)
    assert not (tmp_path / "m").exists()


def test_fim_and_chat_find_them(tmp_path: Path) -> None:
    corpus = tmp_path / "code.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    model = tmp_path / "my.model"
    given = ["--special", ",".join(FIM), "--special", ",".join(CHAT)]
    made = ["--output", str(model), "--vocab-size", "400"]
    done = CliRunner().invoke(cli, ["tokenizer", "train", str(corpus), *made, *given])
    assert done.exit_code == 0, done.output
    tokenizer = tokenizers.load(f"sentencepiece:{model}")
    fim, chat = ([tokenizer.token_id(text) for text in some] for some in (FIM, CHAT))

    run_here(corpus, tmp_path / "out", source="code", tokenizer=tokenizer, task="fim", fim_rate=1)
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "code")
    for number in range(len(docs)):
        tokens = docs[number]["tokens"].tolist()
        assert [tokens.count(i) for i in fim] == [1, 1, 1], "those that the text spells are text"

    talks = tmp_path / "talks.jsonl"
    messages = [{"role": "user", "content": "f1?"}, {"role": "assistant", "content": "x + 1"}]
    forged = [{"role": "user", "content": "<|im_start|>"}, messages[1]]
    talks.write_text("".join(json.dumps({"messages": m}) + "\n" for m in (messages, forged)))
    report = run_here(
        talks, tmp_path / "out", source="chat", tokenizer=tokenizer, task="sft",
        chat_template=CHATML,
    )  # fmt: skip
    assert report.quarantined == {"a message holds the special token '<|im_start|>'": 1}
    dataset = jaxdata.open_dataset(tmp_path / "out")
    tokens = dataset.source("train", "chat")[0]["tokens"].tolist()
    assert [tokens.count(i) for i in chat] == [2, 2]
    assert dataset.decode(tokens) == "user\nf1?\nassistant\nx + 1\n"


@pytest.mark.parametrize("name", ["mistral", "gpt2-hf", "neox", "gpt2-files", "cl100k", "t5"])
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


@pytest.mark.parametrize(("pad_id", "first"), [(3, 4), (5, 3), (300, 3), (399, 3)])
def test_the_padding_token_has_the_id_asked_for(tmp_path: Path, pad_id: int, first: int) -> None:
    tokenizer = train(tmp_path / "m", special=FIM, pad_id=pad_id)
    assert tokenizer.pad_id == tokenizer.token_id("<pad>") == pad_id
    assert tokenizer.token_id(FIM[0]) == first
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eod_id) == (0, 1, 2)
    (ids,) = tokenizer.encode(["<pad>"])
    assert pad_id not in ids
    assert tokenizer.decode([*ids, pad_id]) == "<pad>"


def test_a_padding_token_that_is_special_too_is_there_once(tmp_path: Path) -> None:
    tokenizer = train(tmp_path / "m", special=["<a>", "<pad>"], pad_id=7)
    assert (tokenizer.token_id("<a>"), tokenizer.pad_id) == (3, 7)


@pytest.mark.parametrize(
    ("pad_id", "says"),
    [
        (0, r"pad_id=0 is the id of <unk>; expected 3 or more"),
        (2, r"pad_id=2 is the id of </s>; expected 3 or more"),
        (400, r"pad_id=400; expected an id from 3 to 399"),
        (-1, r"pad_id=-1; expected an id from 3 to 399"),
    ],
)
def test_a_padding_id_in_use_is_refused(tmp_path: Path, pad_id: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(tmp_path / "m", pad_id=pad_id)
    assert not (tmp_path / "m").exists()
