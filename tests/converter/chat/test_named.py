"""Chat templates by name write what the families publish, and mark what transformers would."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter.chat.families import FORMATS, named_template
from jaxdata.converter.chat.sandbox import sandbox
from jaxdata.converter.inputs.parsing import BadRecord
from tests.converter.chat.test_chat_templates import encode, messages, runs

transformers = pytest.importorskip("transformers")

# As the families' pages show them, where no template of a model is at hand; «…» has loss.
PUBLISHED = {
    "llama2": (
        "<bos>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST]« A <eos>»<bos>[INST] R [/INST]« B <eos>»"
    ),
    "mistral": "<bos>[INST] S\n\nQ[/INST]« A<eos>»[INST] R[/INST]« B<eos>»",
    "zephyr": (
        "<|system|>\nS<eos>\n<|user|>\nQ<eos>\n<|assistant|>\n«A<eos>»\n"
        "<|user|>\nR<eos>\n<|assistant|>\n«B<eos>»\n"
    ),
}
ENDS = {
    "chatml": "<|im_end|>",
    "deepseek": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "gemma": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "phi3": "<|end|>",
    "qwen": "<|im_end|>",
}
"""What ends an answer."""
SYSTEM = {"role": "system", "content": "S"}


def render(name: str, turns: list[dict[str, Any]], **more: Any) -> str:
    template = sandbox().from_string(named_template(name))
    written = template.render(messages=turns, bos_token="<bos>", eos_token="<eos>", **more)
    return written.translate({0xFDD0: "«", 0xFDD1: "»"})


@pytest.mark.parametrize("name", FORMATS)
def test_answers_and_what_ends_them_have_loss(name: str) -> None:
    turns = messages("Q", "A", "R", "B")["messages"]
    whole = render(name, [SYSTEM, *turns])
    if name in PUBLISHED:
        assert whole == PUBLISHED[name]
    else:
        assert re.findall("«(.*?)»", whole) == [f"{answer}{ENDS[name]}" for answer in "AB"]
    asked = render(name, [SYSTEM, *turns[:1]], add_generation_prompt=True)
    assert asked == whole.partition("«")[0]
    without = render(name, turns[:1])
    assert [word in without.lower() for word in ("sys", "you are qwen")] == [name == "qwen"] * 2


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
