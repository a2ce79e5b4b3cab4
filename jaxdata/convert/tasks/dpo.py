"""Preferences: a prompt with a chosen and a rejected answer, as two aligned sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from jaxdata.convert.records import BadRecord, field_of, text_of
from jaxdata.convert.tasks.base import Dropped, Encoded, Record
from jaxdata.convert.tasks.conversations import Conversation, conversation_of, is_messages
from jaxdata.convert.tasks.conversations import read_messages as read
from jaxdata.convert.tasks.pieces import Piece, PieceEncoder
from jaxdata.convert.tasks.turns import TurnSettings
from jaxdata.convert.tasks.writing import Writer
from jaxdata.tokenizers import Tokenizer

__all__ = ["DpoSettings", "DpoTask"]

_USUAL_PROMPTS = ("conversations", "messages")  # where the key of prompts is not there
_LAST_ANSWER = re.compile(r".*assistant:", re.DOTALL | re.IGNORECASE)

Sides = tuple[Sequence[Piece], Sequence[Piece]]


class DpoSettings(TurnSettings):
    """Settings of :class:`DpoTask`."""

    key_options: ClassVar[str] = "--prompt-key, --chosen-key and --rejected-key"

    name: Literal["dpo"] = "dpo"
    train_on: Literal["all", "last"] = "last"
    """What is no prompt has loss, whatever a prompt holds."""
    prompt_key: str = "prompt"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"


class DpoTask:
    """See `Task`; a document is the pieces of the chosen side and of the rejected one.

    The prompt is encoded by itself, so both sides begin with the same tokens, without loss; the
    answer and EOD have loss.

    Args:
        settings: what records look like, and how turns are written.
        tokenizer: text to ids.
        clean: what is done to every text before all else.
    """

    masked = True
    plain = False
    streams: tuple[str, ...] = ("chosen", "rejected")

    def __init__(
        self, settings: DpoSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None
    ) -> None:
        self._settings, self._clean = settings, clean or str
        self._encoder = PieceEncoder(tokenizer, settings.bos)
        self._write = Writer(settings, tokenizer)
        self.keys = None  # the prompt may stand in several, or in none

    def prepare(self, record: Record) -> list[Sides]:
        """See `Task`."""
        chosen, rejected = (self._written(one) for one in self._conversations(record))
        if _prompt(chosen) != _prompt(rejected):
            raise BadRecord("the prompt comes out otherwise before the rejected answer")
        return [(chosen, rejected)]

    def _written(self, conversation: Conversation) -> list[Piece]:
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
        sides = [field_of(record, key) for key in (settings.chosen_key, settings.rejected_key)]
        keys = (settings.prompt_key, *_USUAL_PROMPTS)
        key = next((key for key in keys if record.get(key) is not None), None)
        if key is None and all(isinstance(side, str) for side in sides):
            prompt, sides = _split_text(*self._texts(record))
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

    def _texts(self, record: Record) -> tuple[str, str]:
        settings = self._settings
        return text_of(record, settings.chosen_key), text_of(record, settings.rejected_key)

    def texts(self, document: Sides, stream: str | None = None) -> list[str]:
        """See `Task`."""
        sides = zip(self.streams, document, strict=True)
        pieces = [piece for name, side in sides if stream in (None, name) for piece in side]
        return [piece.content for piece in pieces if isinstance(piece.content, str)]

    def encode(self, documents: Sequence[Sides]) -> list[tuple[Encoded, ...] | Dropped]:
        """See `Task`."""
        chosen = self._encoder.encode([document[0] for document in documents])
        rejected = self._encoder.encode([document[1] for document in documents])
        return [_both(one, other) for one, other in zip(chosen, rejected, strict=True)]


def _both(one: Encoded | Dropped, other: Encoded | Dropped) -> tuple[Encoded, ...] | Dropped:
    if isinstance(one, Dropped):
        return one
    return other if isinstance(other, Dropped) else (one, other)


def _prompt(pieces: Sequence[Piece]) -> list[str | int]:
    """What stands before the first piece with loss."""
    first = next(number for number, piece in enumerate(pieces) if piece.loss)
    return [piece.content for piece in pieces[:first]]


def _continued(prompt: Conversation, answer: Any) -> Conversation:
    """A prompt and an answer: a text, a message, or messages."""
    added, losses = _side(answer)
    silent = [False] * len(prompt.losses)
    return Conversation(prompt.messages + added, silent + losses, prompt.variables)


def _side(answer: Any) -> tuple[list[dict[str, Any]], list[bool]]:
    if isinstance(answer, Mapping):
        answer = [answer]
    if is_messages(answer):
        return read(answer)
    text = text_of({"an answer": answer}, "an answer")
    return [{"role": "assistant", "content": text}], [True]


def _split_messages(
    chosen: tuple[list[dict[str, Any]], list[bool]],
    rejected: tuple[list[dict[str, Any]], list[bool]],
) -> list[Conversation]:
    """The prompt is what both conversations begin with."""
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
    """The prompt is the chosen text up to the last "assistant:"."""
    found = _LAST_ANSWER.match(chosen)
    if found is None:
        raise BadRecord("no prompt, and no 'assistant:' in the chosen text that would end it")
    if not rejected.startswith(found.group()):
        raise BadRecord("the rejected text does not begin with the prompt of the chosen one")
    return found.group(), [text[found.end() :] for text in (chosen, rejected)]
