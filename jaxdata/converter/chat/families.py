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

from __future__ import annotations

import json
from typing import NamedTuple


class Format(NamedTuple):
    """How a family writes turns. `{bos}` and `{eos}` are the tokenizer's own tokens."""

    user: tuple[str, str]
    """before and after the words of a user"""
    assistant: tuple[str, str, str]
    """before an answer, without loss; after it, with loss: the end that a model has to learn; after
    that, without"""
    system: tuple[str, str]
    """before and after the system's words; where `inside`, in the first turn of the user"""
    begin: str = ""
    """before everything"""
    space: str = ""
    """that begins an answer, with loss: most vocabularies have it in the first word's token"""
    inside: bool = False
    trims: bool = False
    """whether spaces around a message are left out"""
    default: str = ""
    """the system's words where a conversation has none"""


def _turns(before: str, after: str, answer: str = "assistant", **more: str | bool) -> Format:
    """Turns that only differ in a name."""
    user, system, said = (before.replace("ROLE", role) for role in ("user", "system", answer))
    end, rest = after.rstrip("\n"), after[len(after.rstrip("\n")) :]
    return Format((user, after), (said, end, rest), (system, after), **more)  # type: ignore[arg-type]


_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
FORMATS = {
    # https://github.com/openai/openai-python/blob/v0.28.1/chatml.md
    "chatml": _turns("<|im_start|>ROLE\n", "<|im_end|>\n"),
    # https://github.com/deepseek-ai/DeepSeek-V3, tokenizer_config.json
    "deepseek": Format(
        ("<\uff5cUser\uff5c>", ""),
        ("<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", ""),
        ("", ""),
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ),
    # https://ai.google.dev/gemma/docs/core/prompt-structure
    "gemma": Format(
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>", "\n"),
        ("", "\n\n"),
        "{bos}",
        inside=True,
        trims=True,
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-2/
    "llama2": Format(
        ("{bos}[INST] ", " [/INST]"),
        ("", " {eos}", ""),
        ("<<SYS>>\n", "\n<</SYS>>\n\n"),
        space=" ",
        inside=True,
        trims=True,
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/
    "llama3": _turns(
        "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", begin="{bos}", trims=True
    ),
    # https://docs.mistral.ai/guides/tokenization/, version 3
    "mistral": Format(
        ("[INST] ", "[/INST]"), ("", "{eos}", ""), ("", "\n\n"), "{bos}", space=" ", inside=True
    ),
    # https://huggingface.co/microsoft/Phi-3-mini-4k-instruct, Chat Format
    "phi3": _turns("<|ROLE|>\n", "<|end|>\n"),
    # https://qwen.readthedocs.io/en/v2.5/, Qwen2.5: ChatML with words of its own
    "qwen": _turns("<|im_start|>ROLE\n", "<|im_end|>\n", default=_QWEN),
    # https://huggingface.co/HuggingFaceH4/zephyr-7b-beta
    "zephyr": _turns("<|ROLE|>\n", "{eos}\n"),
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
    written = FORMATS[name]
    system = [_said(written.system[0]), "{{- all.system -}}", _said(written.system[1])]
    parts = {
        "NAME": name,
        "DEFAULT": json.dumps(written.default),
        "WORDS": 'message.content or ""' if not written.trims else '(message.content or "") | trim',
        "INSIDE": str(written.inside).lower(),
        "BEGIN": _said(written.begin),
        "SYSTEM": "".join(system),
        "USER_BEFORE": _said(written.user[0]),
        "USER_AFTER": _said(written.user[1]),
        "SPACE": _said(written.space),
        "ANSWER_BEFORE": _said(written.assistant[0]),
        "ANSWER_END": _said(written.assistant[1]),
        "ANSWER_AFTER": _said(written.assistant[2]),
    }
    template = _SKELETON
    for part, text in parts.items():
        template = template.replace(part, text)
    return template


def _said(text: str) -> str:
    """An expression of Jinja that writes a text."""
    quoted = json.dumps(text, ensure_ascii=False)
    for role in ("bos", "eos"):
        quoted = quoted.replace(f"{{{role}}}", f'" + {role}_token + "')
    return f"{{{{- {quoted} -}}}}" if text else ""
