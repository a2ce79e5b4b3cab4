"""Text around turns that looks like special tokens and is none is refused, and shown as text."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.cli import _run
from jaxdata.converter.chat.formatting import texts_like_tokens
from tests.converter.chat.chat import ALPACA, CHATML
from tests.converter.here import manifest, run_here
from tests.tokenizers.test_tokenizers import open_one

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
INST = "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endfor %}"
CHATML_TOKENS = ["<|im_start|>", "<|im_end|>"]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": TURNS}) + "\n")
    return path


def test_what_looks_like_a_token() -> None:
    for text, expected in {
        "<|im_start|>user\n<|im_end|><|im_start|>": CHATML_TOKENS,
        "<\uff5cUser\uff5c>a</s><s>": ["<\uff5cUser\uff5c>", "</s>", "<s>"],
        "<bos><start_of_turn>model<end_of_turn>": ["<bos>", "<start_of_turn>", "<end_of_turn>"],
        "[INST] <<SYS>> <</SYS>> [/INST]": ["[INST]", "<<SYS>>", "<</SYS>>", "[/INST]"],
        "[TOOL_CALLS][1] [USER] a[i] <b></b> List<String> <| a |> <think></think>": [
            "[TOOL_CALLS]"
        ],
    }.items():
        assert texts_like_tokens(text) == expected


def test_what_is_no_token_is_refused_before_any_work(
    tmp_path: Path, chats: Path, shared_data: Path
) -> None:
    says = (
        r"the chat template, or a prefix, writes what looks like special tokens, but is text to "
        r"the tokenizer 'cl100k_base': <\|im_start\|> \(6 tokens\), <\|im_end\|> \(6 tokens\)\. .*"
        r"--add-special '<\|im_start\|>,<\|im_end\|>' .*--template-text-ok"
    )
    cl100k = open_one(shared_data, "cl100k")
    chat = {"task": "sft", "chat_template": CHATML, "source": "chat"}
    with pytest.raises(InputError, match=says):
        run_here(chats, tmp_path / "out", tokenizer=cl100k, **chat)
    assert not (tmp_path / "out").exists()
    added = cl100k.with_special(CHATML_TOKENS)
    run_here(chats, tmp_path / "out", tokenizer=added, **chat)
    tokens = jaxdata.open_dataset(tmp_path / "out").source("train", "chat")[0]["tokens"].tolist()
    assert [tokens.count(added.special_tokens[text]) for text in CHATML_TOKENS] == [2, 2]


def test_prefixes_and_preferences_too(tmp_path: Path, chats: Path) -> None:
    for options, named in (
        ({"task": "dpo", "chat_template": INST}, r"a prefix, writes .*: \[INST\] .*, \[/INST\] "),
        ({"task": "sft", "prompt_prefix": "<|user|>"}, r"a prefix, writes .*: <\|user\|> "),
        ({"task": "sft", "separator": "</s>", "train_on": "last"}, r"a prefix, writes .*: </s> "),
    ):
        with pytest.raises(InputError, match=named):
            run_here(chats, tmp_path / "out", **options)


def test_it_is_said_where_it_is_meant_and_nothing_where_all_is_right(
    tmp_path: Path, chats: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return found

    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "2+2", "completion": "4"}\n' * 3)
    run_here(chats, tmp_path / "b", chat_template=ALPACA, task="sft")
    run_here(pairs, tmp_path / "c", task="sft", separator=": ")
    assert said() == []
    run_here(pairs, tmp_path / "d", task="sft")
    assert ["nothing will stand between a prompt" in one for one in said()] == [True]
    run_here(chats, tmp_path / "e", task="sft", chat_template=CHATML, template_text_ok=True)
    assert said() == ["text, and no special tokens of 'bytes': <|im_start|>, <|im_end|>"]
    recorded = manifest(tmp_path / "e")["sources"]["train/web"]["parameters"]
    assert "template_text_ok" not in recorded


def test_a_document_shows_which_is_which(
    tmp_path: Path, chats: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = open_one(shared_data, "cl100k").with_special(["<|im_start|>"])
    options = {"task": "sft", "chat_template": CHATML, "template_text_ok": True}
    run_here(chats, tmp_path / "out", tokenizer=tokenizer, **options)
    assert _run(["inspect", str(tmp_path / "out"), "--document", "train/web:0"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "⟦⟪<|im_start|>⟫user",
        "Hi<|im_end|>",
        "⟪<|im_start|>⟫assistant",
        "⟧Ho<|im_end|>",
        "⟪<|endoftext|>⟫",
        "text, and no special tokens: <|im_end|>",
    ]
