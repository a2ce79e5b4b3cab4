"""Instruction tuning: prompts and answers, of which the answers have loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from jaxdata.convert.tasks.base import Dropped, Encoded, Record
from jaxdata.convert.tasks.conversations import Conversation, conversation_of
from jaxdata.convert.tasks.fields import columns, pairs_of
from jaxdata.convert.tasks.pieces import Piece, PieceEncoder
from jaxdata.convert.tasks.turns import TurnSettings
from jaxdata.convert.tasks.writing import Writer
from jaxdata.tokenizers import Tokenizer

__all__ = ["SftSettings", "SftTask"]

Document = Sequence[Piece] | Dropped
"""What a conversation became, or why one of several was left out."""

_EMPTY = "an empty prompt or completion"
_USUAL = ("messages", "conversations")  # keys of conversations, where none is named


def _split(keys: Any) -> Any:
    return tuple(keys.split(",")) if isinstance(keys, str) else keys


Keys = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Keys, or one text with commas between them."""


class SftSettings(TurnSettings):
    """Settings of :class:`SftTask`."""

    name: Literal["sft"] = "sft"
    prompt_key: Keys = ()
    """Fields of prompts, joined; see `fields.pairs_of`."""
    completion_key: str = ""
    messages_key: str = ""
    """The field of conversations; used instead of prompts and completions."""
    content_key: str = ""
    """Where their messages have their text, if not in "content" or "value"."""
    pairs: Literal["documents", "turns"] = "documents"
    """What several pairs of one record become."""


class SftTask:
    """See `Task`; a document is its pieces.

    Args:
        settings: what records look like, and how turns are written.
        tokenizer: text to ids.
        clean: what is done to every text before all else.
    """

    masked = True
    plain = False
    streams: tuple[str, ...] = ("",)

    def __init__(
        self, settings: SftSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None
    ) -> None:
        self._settings = settings
        self._clean = clean or str
        self._encoder = PieceEncoder(tokenizer, settings.bos)
        self._write = Writer(settings, tokenizer)
        given = (*settings.prompt_key, settings.completion_key)
        self.keys = columns(*given) if all(given) and settings.prompt_key else None

    def prepare(self, record: Record) -> list[Document]:
        """See `Task`."""
        key = self._settings.messages_key or self._usual_key(record)
        if key:
            conversation = conversation_of(record, key, self._settings.content_key)
            self._write.check_roles_are_told()
            return [self._conversation(conversation.cleaned(self._clean))]
        settings = self._settings
        prompts, completion = settings.prompt_key or ("prompt",), settings.completion_key
        found = pairs_of(record, prompts, completion or "completion")
        return self._pairs([(self._clean(prompt), self._clean(answer)) for prompt, answer in found])

    def _usual_key(self, record: Record) -> str | None:
        if self._settings.prompt_key or self._settings.completion_key:
            return None
        return next((key for key in _USUAL if key in record), None)

    def _pairs(self, pairs: list[tuple[str, str]]) -> list[Document]:
        turns = [[("user", prompt, False), ("assistant", answer, True)] for prompt, answer in pairs]
        if self._settings.pairs == "documents":
            return [
                self._conversation(Conversation.of(turn)) if all(pair) else Dropped(_EMPTY)
                for turn, pair in zip(turns, pairs, strict=True)
            ]
        if not all(map(all, pairs)):
            raise Dropped(_EMPTY)
        return [self._conversation(Conversation.of([one for turn in turns for one in turn]))]

    def _conversation(self, conversation: Conversation) -> list[Piece]:
        if self._settings.train_on == "last":
            conversation = conversation.last_only()
        if not any(conversation.losses):
            raise Dropped("no answer to train on")
        return self._write(conversation)

    def texts(self, document: Sequence[Piece], _stream: str | None = None) -> list[str]:
        """See `Task`."""
        return [piece.content for piece in document if isinstance(piece.content, str)]

    def encode(self, documents: Sequence[Sequence[Piece]]) -> list[tuple[Encoded, ...] | Dropped]:
        """See `Task`."""
        encoded = self._encoder.encode(documents)
        return [one if isinstance(one, Dropped) else (one,) for one in encoded]
