"""Settings of conversations, and writing them without a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.templates import find_template
from jaxdata.converter.options import option
from jaxdata.converter.tasks.base import Settings
from jaxdata.converter.tasks.spans import Span
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer

AFFIXES = ("separator", "prompt_prefix", "completion_prefix", "eod_after_prompt")
"""Options that write what is between turns, without a chat template."""

_WITHOUT_TEMPLATE = ", where there is no chat template."
TRAIN_ON = "Answers of a conversation that have loss."


class TurnSettings(Settings):
    """The settings that all tasks of prompts and answers have."""

    key_options: ClassVar[str] = "--prompt-key, --completion-key or --messages-key"

    separator: str = option(
        "", f"Text between a prompt and its answer{_WITHOUT_TEMPLATE}", escapes=True
    )
    prompt_prefix: str = option("", f"Text before each prompt{_WITHOUT_TEMPLATE}", escapes=True)
    completion_prefix: str = option(
        "", f"Text before each answer, without loss{_WITHOUT_TEMPLATE}", escapes=True
    )
    eod_after_prompt: bool = option(
        False, f"End prompts with the end-of-document token too{_WITHOUT_TEMPLATE}"
    )
    train_on: Literal["all", "last"] = option("all", TRAIN_ON)
    chat_template: str | None = option(
        None,
        "Chat template: a file of Jinja, 'tokenizer' or 'none'.",
        metavar="FILE",
        shown="the tokenizer's, if it has one",
    )
    """The template itself, when read; with it, none of the affixes above is written."""
    template_variables: dict[str, Any] = option(
        dict, "Variables for the chat template, as a JSON object.", metavar="JSON"
    )
    allow_special: bool = option(
        False,
        "Read the texts of special tokens in messages as these tokens. Without it, such records "
        "are quarantined.",
    )

    @classmethod
    def completed(cls, given: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
        return {**given, "chat_template": _template(given, tokenizer)}


def _template(given: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    named = given.get("chat_template")
    if not isinstance(named, str | None):
        raise InputError(f"chat_template={named!r}: expected a file, 'tokenizer', 'none' or None")
    affixes = [name for name in AFFIXES if given.get(name)]
    if named not in (None, "none") and affixes:
        raise InputError(
            f"{affixes[0]} cannot be combined with a chat template, which writes everything "
            "between turns: give one"
        )
    plain = affixes or given.get("prompt_key") or given.get("completion_key")
    return None if named is None and plain else find_template(named, tokenizer)


def turn_spans(conversation: Conversation, written: TurnSettings, eod: int) -> list[Span]:
    """Write a conversation without a template: prompts, then answers that end with EOD.

    Messages other than answers are prompts, each with its prefix; the separator is put between
    the last of them and the answer.
    """
    spans = []
    for number, message in enumerate(conversation.messages):
        loss, content = conversation.losses[number], message["content"] or ""
        if message["role"] == "assistant":
            spans += _affix(written.separator if number else "")
            answer = [Span(one, loss, turn="answer") for one in (content, eod)]
            spans += [*_affix(written.completion_prefix), *answer]
        else:
            spans += [*_affix(written.prompt_prefix), Span(content, False, turn="prompt")]
            spans += [Span(eod, False)] if written.eod_after_prompt else []
    last = spans[-1]
    return spans if last.content == eod else [*spans, Span(eod, False)]


def _affix(text: str) -> list[Span]:
    return [Span(text, False, special=True)] if text else []
