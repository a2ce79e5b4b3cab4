"""Chat templates by name: how published families of models write a conversation.

Each is a row of `FORMATS`, what stands before and after the messages of a role, for the template of
Jinja that all share, `family.jinja`. The words of an answer, and what ends it, are marked as the
assistant's. What only some of a family write (calls of tools, thoughts, today's date) is refused:
that asks for the model's own template.

    >>> from jinja2 import Environment
    >>> from jaxdata.converter.chat.sandbox import Generation
    >>> template = Environment(extensions=[Generation]).from_string(named_template("chatml"))
    >>> print(template.render(messages=[{"role": "user", "content": "Hi"}]))
    <|im_start|>user
    Hi<|im_end|>
    <BLANKLINE>
"""

import json
import re
from pathlib import Path
from typing import NamedTuple


class Format(NamedTuple):
    """How a family writes turns: `{}` stands for the words, `{bos}` and `{eos}` for tokens."""

    system: str
    """where `inside`, written in the first turn of the user"""
    user: str
    answer: str
    """what is in «» has loss: the words, a space before them that most vocabularies have in the
    first one's token, and the end that a model has to learn"""
    begin: str = ""
    """before everything"""
    inside: bool = False
    trims: bool = False
    """whether spaces around a message are left out"""
    default: str = ""
    """the system's words where a conversation has none"""


_ROLES = ("system", "user", "assistant")


def _turns(written: str, **more: str | bool) -> Format:
    """Turns that only differ in a name."""
    system, user, answer = (written.replace("ROLE", role) for role in _ROLES)
    before, after = answer.split("{}")
    end = after.rstrip("\n")
    return Format(system, user, f"{before}«{{}}{end}»{after[len(end) :]}", **more)  # type: ignore[arg-type]


FORMATS = {
    # https://github.com/openai/openai-python/blob/v0.28.1/chatml.md
    "chatml": _turns("<|im_start|>ROLE\n{}<|im_end|>\n"),
    # https://github.com/deepseek-ai/DeepSeek-V3, tokenizer_config.json
    "deepseek": Format(
        "{}",
        "<\uff5cUser\uff5c>{}",
        "<\uff5cAssistant\uff5c>«{}<\uff5cend\u2581of\u2581sentence\uff5c>»",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ),
    # https://ai.google.dev/gemma/docs/core/prompt-structure
    "gemma": Format(
        "{}\n\n",
        "<start_of_turn>user\n{}<end_of_turn>\n",
        "<start_of_turn>model\n«{}<end_of_turn>»\n",
        "{bos}",
        inside=True,
        trims=True,
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-2/
    "llama2": Format(
        "<<SYS>>\n{}\n<</SYS>>\n\n",
        "{bos}[INST] {} [/INST]",
        "« {} {eos}»",
        inside=True,
        trims=True,
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/
    "llama3": _turns(
        "<|start_header_id|>ROLE<|end_header_id|>\n\n{}<|eot_id|>", begin="{bos}", trims=True
    ),
    # https://docs.mistral.ai/guides/tokenization/, version 3
    "mistral": Format("{}\n\n", "[INST] {}[/INST]", "« {}{eos}»", "{bos}", inside=True),
    # https://huggingface.co/microsoft/Phi-3-mini-4k-instruct, Chat Format
    "phi3": _turns("<|ROLE|>\n{}<|end|>\n"),
    # https://qwen.readthedocs.io/en/v2.5/, Qwen2.5: ChatML with words of its own
    "qwen": _turns(
        "<|im_start|>ROLE\n{}<|im_end|>\n",
        default="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    ),
    # https://huggingface.co/HuggingFaceH4/zephyr-7b-beta
    "zephyr": _turns("<|ROLE|>\n{}{eos}\n"),
}
"""name -> how it is written"""


def named_template(name: str) -> str:
    """The Jinja template of a family of `FORMATS`; raises KeyError."""
    form = FORMATS[name]
    parts = {"name": name, "system": form.system.split("{}"), "user": form.user.split("{}")}
    parts["answer"] = re.split("«|{}|»", form.answer)
    written = json.dumps(form._asdict() | parts, ensure_ascii=False)
    for role in ("bos", "eos"):
        written = written.replace(f"{{{role}}}", f'" + {role}_token + "')
    template = Path(__file__).with_name("family.jinja").read_text(encoding="utf-8")
    return f"{{%- set form = {written} -%}}\n{template}"
