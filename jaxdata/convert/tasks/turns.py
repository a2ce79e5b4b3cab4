"""How conversations are written: settings, and the way without a chat template."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from jaxdata.convert.tasks.base import Settings
from jaxdata.convert.tasks.conversations import Conversation
from jaxdata.convert.tasks.pieces import Piece

__all__ = ["AFFIXES", "TurnSettings", "turn_pieces"]

AFFIXES = ("separator", "prompt_prefix", "completion_prefix", "eod_after_prompt")
"""What stands between turns where there is no chat template."""


class TurnSettings(Settings):
    """What tasks of prompts and answers have in common."""

    key_options: ClassVar[str] = "--prompt-key, --completion-key or --messages-key"

    separator: str = ""
    """Between a prompt and its answer; a special token's text stands for that."""
    prompt_prefix: str = ""
    """Before each prompt, likewise."""
    completion_prefix: str = ""
    """Before each answer, without loss, likewise."""
    eod_after_prompt: bool = False
    train_on: Literal["all", "last"] = "all"
    """Which answers of a conversation have loss."""
    chat_template: str | None = None
    """The template itself, not its file; with it, none of the affixes above is written."""
    template_variables: dict[str, Any] = Field(default_factory=dict)
    allow_special: bool = False
    """Whether messages may hold texts of special tokens, which then stand for these."""


def turn_pieces(conversation: Conversation, written: TurnSettings, eod: int) -> list[Piece]:
    """Write a conversation without a template: prompts, then answers that end with EOD.

    Messages that are no answers are prompts, each with its prefix; the separator stands between
    the last of them and the answer.
    """
    pieces = []
    for number, message in enumerate(conversation.messages):
        loss, content = conversation.losses[number], message["content"] or ""
        if message["role"] == "assistant":
            pieces += _affix(written.separator if number else "")
            pieces += [*_affix(written.completion_prefix), Piece(content, loss), Piece(eod, loss)]
        else:
            pieces += [*_affix(written.prompt_prefix), Piece(content, False)]
            pieces += [Piece(eod, False)] if written.eod_after_prompt else []
    last = pieces[-1]
    return pieces if last.content == eod else [*pieces, Piece(eod, False)]


def _affix(text: str) -> list[Piece]:
    return [Piece(text, False, special=True)] if text else []
