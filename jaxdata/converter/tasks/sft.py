"""Instruction tuning: prompts and answers, of which the answers have loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from jaxdata.converter.chat.conversations import Conversation, conversation_of
from jaxdata.converter.chat.formatting import ConversationFormatter
from jaxdata.converter.options import option
from jaxdata.converter.tasks.base import Clean, Dropped, Encoded, Prepared, Record, Task
from jaxdata.converter.tasks.conversation_turns import TurnSettings
from jaxdata.converter.tasks.fields import columns, pairs_of
from jaxdata.converter.tasks.registry import register
from jaxdata.converter.tasks.spans import Span, SpanEncoder
from jaxdata.converter.tasks.turn_truncation import Keep, Truncation
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer

Document = Sequence[Span] | Dropped
"""What a conversation became, or why one of several was left out."""

_EMPTY = "an empty prompt or completion"
_WITHOUT_TEMPLATE = ", where there is no chat template. Without it, they stay as they are."
_USUAL = ("messages", "conversations")  # keys of conversations, where none is named


def _split(keys: Any) -> Any:
    return tuple(keys.split(",")) if isinstance(keys, str) else keys


Keys = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Keys, or one text with commas between them."""


class SftSettings(TurnSettings):
    """Settings of :class:`SftTask`."""

    makes: ClassVar[str] = "prompts and answers"

    name: Literal["sft"] = "sft"
    prompt_key: Keys = option(
        (),
        "Key of prompts; several (a,b) are joined, and a.b may go into a list of pairs.",
        shown="prompt",
    )
    completion_key: str = option("", "Key of completions.", shown="completion")
    messages_key: str = option(
        "",
        "Key of conversations, instead of prompts and completions.",
        shown="messages or conversations, where a record has one",
    )
    content_key: str = option("", "Key of the text in a message.", shown="content or value")
    pairs: Literal["documents", "turns"] = option(
        "documents", "What several pairs of one record become: documents, or turns of one."
    )
    truncate_to: int | None = option(
        None,
        "Shorten longer documents to this many tokens, prompts first and then answers"
        f"{_WITHOUT_TEMPLATE}",
        ge=2,
    )
    truncate_prompts: Keep = option("keep_end", "Which part of a shortened prompt stays.")
    least_turn: int = option(1, "Tokens that shortening leaves of each prompt and answer.", ge=1)


class SftTask(Task):
    """See `Task`; a document is its spans."""

    masked = True

    def __init__(self, settings: SftSettings, tokenizer: Tokenizer, clean: Clean | None) -> None:
        self._settings, self._clean = settings, clean or str
        self._encoder = SpanEncoder(tokenizer, settings.bos, _truncation(settings))
        self._write = ConversationFormatter(settings, tokenizer)
        given = (*settings.prompt_key, settings.completion_key)
        self.keys = columns(*given) if all(given) and settings.prompt_key else None

    def prepare(self, record: Record) -> Prepared:
        settings = self._settings
        if key := settings.messages_key or self._usual_key(record):
            conversation = conversation_of(record, key, settings.content_key)
            self._write.check_roles_are_told()
            documents = [self._conversation(conversation.cleaned(self._clean))]
            return Prepared(documents, conversation.contents())
        prompts, completion = settings.prompt_key or ("prompt",), settings.completion_key
        found = list(pairs_of(record, prompts, completion or "completion"))
        cleaned = [(self._clean(prompt), self._clean(answer)) for prompt, answer in found]
        return Prepared(self._pairs(cleaned), [text for pair in found for text in pair])

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

    def _conversation(self, conversation: Conversation) -> list[Span]:
        if self._settings.train_on == "last":
            conversation = conversation.last_only()
        if not any(conversation.losses):
            raise Dropped("no answer to train on")
        return self._write(conversation)

    def texts(self, document: Sequence[Span], stream: str | None = None) -> list[str]:  # noqa: ARG002
        return [span.content for span in document if isinstance(span.content, str)]

    def encode(self, documents: Sequence[Sequence[Span]]) -> list[tuple[Encoded, ...] | Dropped]:
        encoded = self._encoder.encode(documents)
        return [one if isinstance(one, Dropped) else (one,) for one in encoded]


def _truncation(settings: SftSettings) -> Truncation | None:
    if settings.truncate_to is None:
        return None
    if settings.chat_template is not None:
        raise InputError(
            "truncate_to cannot be combined with a chat template, whose marks must stay: give "
            "--chat-template none, or leave long conversations out with --max-tokens"
        )
    tokens = settings.truncate_to - settings.bos
    return Truncation(tokens, settings.truncate_prompts, settings.least_turn)


register(SftSettings, SftTask)
