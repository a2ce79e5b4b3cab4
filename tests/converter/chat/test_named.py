"""Chat templates by name write what the families publish, and mark what transformers would."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter.chat.families import FORMATS, named_template
from jaxdata.converter.chat.sandbox import sandbox
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.tokenizers import Tokenizer
from tests.converter.chat.test_chat_templates import encode, messages, runs

transformers = pytest.importorskip("transformers")

# As the families' pages show them; «…» has loss. With a system, without one, and the question.
PUBLISHED = {
    "chatml": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
        "<|im_start|>assistant\n«A<|im_end|>»\n<|im_start|>user\nR<|im_end|>\n"
        "<|im_start|>assistant\n«B<|im_end|>»\n",
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
    ),
    "deepseek": (
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>S<\uff5cUser\uff5c>Q<\uff5cAssistant\uff5c>"
        "«A<\uff5cend\u2581of\u2581sentence\uff5c>»<\uff5cUser\uff5c>R<\uff5cAssistant\uff5c>"
        "«B<\uff5cend\u2581of\u2581sentence\uff5c>»",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>Q<\uff5cAssistant\uff5c>",
    ),
    "gemma": (
        "<bos><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\n«A<end_of_turn>»\n"
        "<start_of_turn>user\nR<end_of_turn>\n<start_of_turn>model\n«B<end_of_turn>»\n",
        "<bos><start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\n",
    ),
    "llama2": (
        "<bos>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST]« A <eos>»<bos>[INST] R [/INST]« B <eos>»",
        "<bos>[INST] Q [/INST]",
    ),
    "llama3": (
        "<bos><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n«A<|eot_id|>»"
        "<|start_header_id|>user<|end_header_id|>\n\nR<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n«B<|eot_id|>»",
        "<bos><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": (
        "<bos>[INST] S\n\nQ[/INST]« A<eos>»[INST] R[/INST]« B<eos>»",
        "<bos>[INST] Q[/INST]",
    ),
    "phi3": (
        "<|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\n«A<|end|>»\n"
        "<|user|>\nR<|end|>\n<|assistant|>\n«B<|end|>»\n",
        "<|user|>\nQ<|end|>\n<|assistant|>\n",
    ),
    "qwen": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
        "<|im_start|>assistant\n«A<|im_end|>»\n<|im_start|>user\nR<|im_end|>\n"
        "<|im_start|>assistant\n«B<|im_end|>»\n",
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
    ),
    "zephyr": (
        "<|system|>\nS<eos>\n<|user|>\nQ<eos>\n<|assistant|>\n«A<eos>»\n"
        "<|user|>\nR<eos>\n<|assistant|>\n«B<eos>»\n",
        "<|user|>\nQ<eos>\n<|assistant|>\n",
    ),
}
SYSTEM = {"role": "system", "content": "S"}


def render(name: str, turns: list[dict[str, Any]], **more: Any) -> str:
    template = sandbox().from_string(named_template(name))
    written = template.render(messages=turns, bos_token="<bos>", eos_token="<eos>", **more)
    return written.translate({0xFDD0: "«", 0xFDD1: "»"})


def test_every_name_is_published_somewhere() -> None:
    assert PUBLISHED.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_it_writes_what_the_family_publishes(name: str) -> None:
    conversation, question = PUBLISHED[name]
    turns = messages("Q", "A", "R", "B")["messages"]
    assert render(name, [SYSTEM, *turns]) == conversation
    assert render(name, turns[:1], add_generation_prompt=True) == question


OF_MODELS = {
    "chatml": "qwen3_instruct_2507",
    "deepseek": "deepseekv3",
    "gemma": "gemma3",
    "llama3": "llama3",
    "phi3": "phi3",
    "qwen": "qwen2_5",
}
"""A family -> the template of one of its models, as TRL ships it."""


@pytest.mark.parametrize("name", OF_MODELS)
def test_it_writes_what_the_template_of_a_model_writes_in_transformers(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    trl = importlib.util.find_spec("trl")
    assert trl is not None
    folder = Path(str(trl.origin)).parent / "chat_templates"
    theirs = (folder / f"{OF_MODELS[name]}.jinja").read_text()
    turns = messages("What is\n2 + 2? ", "It is 4.", " Sure? ", "Yes:\n\n4 ")["messages"]
    system = [{"role": "system", "content": "Count well."}]
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    if name == "deepseek":
        tokens["bos_token"] = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    for conversation in ([*system, *turns], turns, turns[:2], [*system, *turns[:1]]):
        asked = conversation[-1]["role"] == "user"
        given = {"conversations": [conversation], "add_generation_prompt": asked, **tokens}
        (expected,), _ = render_jinja_template(chat_template=theirs, **given)
        (found,), _ = render_jinja_template(chat_template=named_template(name), **given)
        # Phi-3 ends with EOS, as every document does; DeepSeek's asks for thoughts.
        assert found == expected.removesuffix("<eos>").removesuffix("<think>\n")


@pytest.mark.parametrize("name", FORMATS)
def test_what_only_the_models_own_template_can_write_is_refused(name: str) -> None:
    for turns, why in (
        ([{"role": "tool", "content": "3"}], "for calls of tools give the model's own template"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "for calls of tools"),
        ([*messages("Q")["messages"], SYSTEM], "has one system message, the first"),
    ):
        with pytest.raises(Exception, match=f"{name} by name.*{re.escape(why)}|{re.escape(why)}"):
            render(name, turns)


@pytest.fixture(scope="module")
def model(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 with all special tokens that the families write."""
    from jaxdata.converter.chat.formatting import texts_like_tokens

    folder = tmp_path_factory.mktemp("model")
    gpt2 = shared_data / "tokenizers/gpt2/tokenizer.json"
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(gpt2), bos_token="<s>", eos_token="</s>", pad_token="<|endoftext|>"
    )
    written = "".join("".join(each) for each in PUBLISHED.values())
    made.add_special_tokens({"additional_special_tokens": texts_like_tokens(written)})
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return tokenizers.load(f"hf:{model}")


@pytest.mark.parametrize("name", FORMATS)
def test_ids_and_losses_are_those_of_transformers(
    name: str, model: Path, tokenizer: Tokenizer
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    record = messages("What is\n2 + 2?", "It is 4.", "Sure? ", "Yes:\n\n4")
    record["messages"].insert(0, {"role": "system", "content": "Count well."})
    expected = theirs.apply_chat_template(
        record["messages"],
        chat_template=named_template(name),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    tokens, mask = encode(tokenizer, record, chat_template=name)
    if tokenizer.eod_id not in expected["input_ids"][-2:]:  # documents end with EOD all the same
        last = tokens.pop(), mask.pop()
        assert last == (tokenizer.eod_id, 0)
    found = lines_alone(zip(tokens, mask, strict=True))
    wanted = lines_alone(zip(expected["input_ids"], expected["assistant_masks"], strict=True))
    assert found == wanted[: len(found)]
    assert len(wanted) - len(found) in (0, 1), "at most the line after the last end"


def lines_alone(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """With two newlines for the token of both: an answer begins with a token of its own here, as
    when the model is asked, and GPT-2 cuts newlines before a word otherwise."""
    return [each for pair in pairs for each in ([(198, pair[1])] * 2 if pair[0] == 628 else [pair])]


def test_a_base_tokenizer_is_told_what_it_lacks_and_takes_it(shared_data: Path) -> None:
    gpt2 = f"hf:{shared_data}/tokenizers/gpt2"
    with pytest.raises(InputError, match=r"give one with --chat-template, by its name \(chatml, "):
        encode(tokenizers.load(gpt2), messages("Q", "A"), chat_template="tokenizer")
    added = tokenizers.load(gpt2, add_special=["<|im_start|>", "<|im_end|>"])
    assert runs(added, messages("Q", "A"), chat_template="chatml") == [
        ("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n", 0),
        ("A<|im_end|>", 1),
        ("\n<|endoftext|>", 0),
    ]
    with pytest.raises(
        BadRecord, match=r"a conversation, and neither .*--chat-template chatml, say"
    ):
        encode(added, messages("Q", "A"))
