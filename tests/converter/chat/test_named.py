"""Chat templates by name write what the families publish, and mark what transformers would."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter.chat.families import FORMATS, named_template
from jaxdata.converter.chat.sandbox import sandbox
from tests.converter.chat.test_chat_templates import encode, messages, runs

render_jinja_template = pytest.importorskip(
    "transformers.utils.chat_template_utils"
).render_jinja_template

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
OF_MODELS = {
    "chatml": ("qwen3_instruct_2507", "<|im_end|>"),
    "deepseek": ("deepseekv3", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "gemma": ("gemma3", "<end_of_turn>"),
    "llama3": ("llama3", "<|eot_id|>"),
    "phi3": ("phi3", "<|end|>"),
    "qwen": ("qwen2_5", "<|im_end|>"),
}
"""A family -> the template of one of its models, as TRL ships it, and what ends an answer."""
SYSTEM = {"role": "system", "content": "S"}
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def render(name: str, turns: list[dict[str, Any]], **more: Any) -> str:
    template = sandbox().from_string(named_template(name))
    written = template.render(messages=turns, **TOKENS, **more)
    return written.translate({0xFDD0: "«", 0xFDD1: "»"})


@pytest.mark.parametrize("name", FORMATS)
def test_a_family_writes_what_is_published_and_answers_and_their_ends_have_loss(name: str) -> None:
    whole = render(name, [SYSTEM, *messages("Q", "A", "R", "B")["messages"]])
    asked = render(name, [SYSTEM, *messages("Q")["messages"]], add_generation_prompt=True)
    assert asked == whole.partition("«")[0]
    if name in PUBLISHED:
        assert whole == PUBLISHED[name]
        return
    model, end = OF_MODELS[name]
    assert re.findall("«(.*?)»", whole) == [f"{answer}{end}" for answer in "AB"]
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    theirs = (Path(str(trl.origin)).parent / f"chat_templates/{model}.jinja").read_text()
    turns = messages("What is\n2 + 2? ", "It is 4.", " Sure? ", "Yes:\n\n4 ")["messages"]
    begin = {"bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"} if name == "deepseek" else {}
    for conversation in ([SYSTEM, *turns], turns, turns[:2], [SYSTEM, *turns[:1]]):
        last = conversation[-1]["role"] == "user"
        given = {"conversations": [conversation], "add_generation_prompt": last, **TOKENS, **begin}
        (expected,), _ = render_jinja_template(chat_template=theirs, **given)
        (found,), _ = render_jinja_template(chat_template=named_template(name), **given)
        # Phi-3 ends with EOS, as every document does; DeepSeek's asks for thoughts.
        assert found == expected.removesuffix("<eos>").removesuffix("<think>\n")


def test_what_only_the_models_own_template_can_write_is_refused() -> None:
    for turns, why in (
        ([{"role": "tool", "content": "3"}], "for calls of tools"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "for calls of tools"),
        ([*messages("Q")["messages"], SYSTEM], "has one system message, the first"),
    ):
        with pytest.raises(TemplateError, match=f"llama3 by name.*{re.escape(why)}"):
            render("llama3", turns)


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
