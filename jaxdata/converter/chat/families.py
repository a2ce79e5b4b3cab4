"""Chat templates by name: how published families of models write a conversation.

Each is a Jinja template, made of a row of `FORMATS`: what stands before and after the messages of a
role. The words of an answer, and what ends it, are marked as the assistant's. What only some of a
family write (calls of tools, thoughts, today's date) is refused: that asks for the model's own
template.

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

_SKELETON = """\
{%- set all = namespace(system=DEFAULT, asked=false) -%}
BEGIN
{%- for message in messages -%}
  {%- set words = WORDS -%}
  {%- if message.tool_calls or message.role not in ("system", "user", "assistant") -%}
    {{- raise_exception("NAME by name has a system, a user and an assistant; for calls of tools "
                        "give the model's own template, as a file") -}}
  {%- elif message.role == "system" and not loop.first -%}
    {{- raise_exception("NAME by name has one system message, the first") -}}
  {%- endif -%}
  {%- if message.role == "system" -%}
    {%- set all.system = words -%}
  {%- endif -%}
  {%- if loop.first and all.system and not INSIDE -%}
    SYSTEM
  {%- endif -%}
  {%- if message.role == "user" -%}
    USER_BEFORE
    {%- if INSIDE and all.system and not all.asked -%}
      SYSTEM
    {%- endif -%}
    {%- set all.asked = true -%}
    {{- words -}}
    USER_AFTER
  {%- elif message.role == "assistant" -%}
    ANSWER_BEFORE
    {%- generation -%}SPACE{{- words -}}ANSWER_END{%- endgeneration -%}
    ANSWER_AFTER
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  ANSWER_BEFORE
{%- endif -%}
"""


def named_template(name: str) -> str:
    """The Jinja template of a family of `FORMATS`; raises KeyError."""
    form = FORMATS[name]
    system_before, system_after = map(_said, form.system.split("{}"))
    user_before, user_after = map(_said, form.user.split("{}"))
    before, space, end, after = map(_said, re.split("«|{}|»", form.answer))
    template = _SKELETON
    for part, text in (
        ("NAME", name),
        ("DEFAULT", json.dumps(form.default)),
        ("WORDS", '(message.content or "") | trim' if form.trims else 'message.content or ""'),
        ("INSIDE", str(form.inside).lower()),
        ("BEGIN", _said(form.begin)),
        ("SYSTEM", f"{system_before}{{{{- all.system -}}}}{system_after}"),
        ("USER_BEFORE", user_before),
        ("USER_AFTER", user_after),
        ("SPACE", space),
        ("ANSWER_BEFORE", before),
        ("ANSWER_END", end),
        ("ANSWER_AFTER", after),
    ):
        template = template.replace(part, text)
    return template


def _said(text: str) -> str:
    """An expression of Jinja that writes a text."""
    quoted = json.dumps(text, ensure_ascii=False)
    for role in ("bos", "eos"):
        quoted = quoted.replace(f"{{{role}}}", f'" + {role}_token + "')
    return f"{{{{- {quoted} -}}}}" if text else ""
