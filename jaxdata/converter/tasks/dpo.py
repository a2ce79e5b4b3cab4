"""Preferences: a prompt with a chosen and a rejected answer, as two aligned sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, ClassVar, Literal

from jaxdata.base.settings import setting
from jaxdata.converter.chat.conversations import (
    Conversation,
    conversation_of,
    is_messages,
    read_messages,
)
from jaxdata.converter.chat.formatting import TRAIN_ON, TurnSettings
from jaxdata.converter.inputs.parsing import BadRecord, field_of, text_of
from jaxdata.converter.tasks import Clean, Dropped, Prepared, Record, Span, register
from jaxdata.converter.tasks.sft import SpanTask
from jaxdata.tokenizers import Tokenizer

_USUAL_PROMPTS = ("conversations", "messages")  # where the key of prompts is not there
_LAST_ANSWER = re.compile(r".*assistant:", re.DOTALL | re.IGNORECASE)


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


class DpoTask(SpanTask):
    """See `Task`; a document is the spans of the chosen side and of the rejected one.

    The prompt is encoded by itself, so both sides begin with the same tokens, without loss; the
    answer and EOD have loss.
    """

    streams: tuple[str, ...] = ("chosen", "rejected")

    def __init__(self, settings: DpoSettings, tokenizer: Tokenizer, clean: Clean) -> None:
        super().__init__(settings, tokenizer, clean)
        self._settings = settings
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
            text, sides = _split_text(*(text_of(record, key) for key in side_keys))
        elif key is None or is_messages(record[key]):
            self._write.check_roles_are_told()
            if key is None:
                return _split_messages(*map(_side, sides))
            return [conversation_of(record, key).followed_by(_side(side)) for side in sides]
        else:
            text = text_of(record, key)
        return [Conversation.of([("user", text, False)]).followed_by(_side(side)) for side in sides]


def _prompt(spans: Sequence[Span]) -> list[str | int]:
    """The spans before the first one with loss."""
    return [span.content for span in takewhile(lambda span: not span.loss, spans)]


def _side(answer: Any) -> Conversation:
    """An answer: a text, a message, or messages."""
    if isinstance(answer, Mapping):
        answer = [answer]
    if is_messages(answer):
        return read_messages(answer)
    return Conversation.of([("assistant", text_of({"an answer": answer}, "an answer"), True)])


def _split_messages(chosen: Conversation, rejected: Conversation) -> list[Conversation]:
    """Split off the prompt: the messages that both conversations begin with."""
    pairs = zip(chosen.messages, rejected.messages, strict=False)
    common = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if common is None:
        common = min(len(chosen.messages), len(rejected.messages)) - 1
    if common < 1:
        raise BadRecord("the chosen and the rejected conversation begin with no common prompt")
    return [
        replace(one, losses=[False] * common + one.losses[common:]) for one in (chosen, rejected)
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
