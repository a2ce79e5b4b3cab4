"""Preferences: a prompt with a chosen and a rejected answer, as two aligned sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from jaxdata.base.settings import setting
from jaxdata.converter.chat.conversations import Conversation, conversation_of, is_messages
from jaxdata.converter.chat.conversations import read_messages as read
from jaxdata.converter.chat.formatting import TRAIN_ON, ConversationFormatter, TurnSettings
from jaxdata.converter.inputs.parsing import BadRecord, field_of, text_of
from jaxdata.converter.tasks.base import (
    Clean,
    Dropped,
    Encoded,
    Prepared,
    Record,
    Span,
    SpanEncoder,
    Task,
)
from jaxdata.converter.tasks.registry import register
from jaxdata.tokenizers import Tokenizer

_USUAL_PROMPTS = ("conversations", "messages")  # where the key of prompts is not there
_LAST_ANSWER = re.compile(r".*assistant:", re.DOTALL | re.IGNORECASE)

Sides = tuple[Sequence[Span], Sequence[Span]]
_Side = tuple[list[dict[str, Any]], list[bool]]
"""Messages, and which of them have loss."""


class DpoSettings(TurnSettings):
    """Settings of :class:`DpoTask`."""

    makes: ClassVar[str] = "preferences"
    key_options: ClassVar[str] = "--prompt-key, --chosen-key and --rejected-key"

    name: Literal["dpo"] = "dpo"
    train_on: Literal["all", "last"] = setting("last", TRAIN_ON)
    """What follows the prompt has loss, whatever a prompt holds."""
    prompt_key: str = setting("prompt", "Key of prompts.", metavar="KEY")
    chosen_key: str = setting("chosen", "Key of the better answer.", metavar="KEY")
    rejected_key: str = setting("rejected", "Key of the worse answer.", metavar="KEY")


class DpoTask(Task):
    """See `Task`; a document is the spans of the chosen side and of the rejected one.

    The prompt is encoded by itself, so both sides begin with the same tokens, without loss; the
    answer and EOD have loss.
    """

    masked = True
    streams: tuple[str, ...] = ("chosen", "rejected")

    def __init__(self, settings: DpoSettings, tokenizer: Tokenizer, clean: Clean | None) -> None:
        self._settings, self._clean = settings, clean or str
        self._encoder = SpanEncoder(tokenizer, settings.bos)
        self._write = ConversationFormatter(settings, tokenizer)
        # `keys` stays None: the prompt may be in several fields, or in none.

    def prepare(self, record: Record) -> Prepared:
        conversations = self._conversations(record)
        chosen, rejected = (self._written(one) for one in conversations)
        if _prompt(chosen) != _prompt(rejected):
            raise BadRecord("the prompt comes out otherwise before the rejected answer")
        return Prepared([(chosen, rejected)], [t for one in conversations for t in one.contents()])

    def _written(self, conversation: Conversation) -> list[Span]:
        answers = [
            message["content"] or message.get("tool_calls")
            for message, loss in zip(conversation.messages, conversation.losses, strict=True)
            if loss
        ]
        if not answers or not all(answers):
            raise Dropped("an empty answer")
        return self._write(conversation.cleaned(self._clean))

    def _conversations(self, record: Record) -> list[Conversation]:
        """The chosen and the rejected conversation, with loss on what is no prompt."""
        settings = self._settings
        side_keys = settings.chosen_key, settings.rejected_key
        sides = [field_of(record, key) for key in side_keys]
        keys = (settings.prompt_key, *_USUAL_PROMPTS)
        key = next((key for key in keys if record.get(key) is not None), None)
        if key is None and all(isinstance(side, str) for side in sides):
            prompt, sides = _split_text(*(text_of(record, key) for key in side_keys))
            return [_continued(Conversation.of([("user", prompt, False)]), side) for side in sides]
        if key is None or is_messages(record[key]):
            self._write.check_roles_are_told()
        if key is None:
            return _split_messages(*(_side(side) for side in sides))
        if is_messages(record[key]):
            prompt_messages = conversation_of(record, key)
        else:
            prompt_messages = Conversation.of([("user", text_of(record, key), False)])
        return [_continued(prompt_messages, side) for side in sides]

    def texts(self, document: Sides, stream: str | None = None) -> list[str]:
        sides = zip(self.streams, document, strict=True)
        spans = [span for name, side in sides if stream in (None, name) for span in side]
        return [span.content for span in spans if isinstance(span.content, str)]

    def encode(self, documents: Sequence[Sides]) -> list[tuple[Encoded, ...] | Dropped]:
        chosen, rejected = (self._encoder.encode([sides[k] for sides in documents]) for k in (0, 1))
        return [_both(one, other) for one, other in zip(chosen, rejected, strict=True)]


def _both(one: Encoded | Dropped, other: Encoded | Dropped) -> tuple[Encoded, ...] | Dropped:
    if isinstance(one, Dropped):
        return one
    return other if isinstance(other, Dropped) else (one, other)


def _prompt(spans: Sequence[Span]) -> list[str | int]:
    """The spans before the first one with loss."""
    first = next(number for number, span in enumerate(spans) if span.loss)
    return [span.content for span in spans[:first]]


def _continued(prompt: Conversation, answer: Any) -> Conversation:
    """A prompt and an answer: a text, a message, or messages."""
    added, losses = _side(answer)
    silent = [False] * len(prompt.losses)
    return Conversation(prompt.messages + added, silent + losses, prompt.variables)


def _side(answer: Any) -> _Side:
    if isinstance(answer, Mapping):
        answer = [answer]
    if is_messages(answer):
        return read(answer)
    text = text_of({"an answer": answer}, "an answer")
    return [{"role": "assistant", "content": text}], [True]


def _split_messages(chosen: _Side, rejected: _Side) -> list[Conversation]:
    """Split off the prompt: the messages that both conversations begin with."""
    pairs = zip(chosen[0], rejected[0], strict=False)
    common = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if common is None:
        common = min(len(chosen[0]), len(rejected[0])) - 1
    if common < 1:
        raise BadRecord("the chosen and the rejected conversation begin with no common prompt")
    return [
        Conversation(messages, [False] * common + losses[common:])
        for messages, losses in (chosen, rejected)
    ]


def _split_text(chosen: str, rejected: str) -> tuple[str, list[str]]:
    """Split off the prompt: the chosen text up to the last "assistant:"."""
    found = _LAST_ANSWER.match(chosen)
    if found is None:
        raise BadRecord("no prompt, and no 'assistant:' in the chosen text that would end it")
    if not rejected.startswith(found.group()):
        raise BadRecord("the rejected text does not begin with the prompt of the chosen one")
    return found.group(), [text[found.end() :] for text in (chosen, rejected)]


register(DpoSettings, DpoTask)
