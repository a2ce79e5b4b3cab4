"""Instruction tuning: prompts and answers, of which the answers have loss."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import jaxdata.converter.tasks as tasks
from jaxdata.base.settings import setting
from jaxdata.converter.chat.conversations import Conversation, conversation_of
from jaxdata.converter.chat.formatting import ConversationFormatter, TurnSettings
from jaxdata.converter.inputs.parsing import BadRecord, texts_of
from jaxdata.converter.options import Keys
from jaxdata.tokenizers import Tokenizer


def pairs_of(
    record: tasks.Record, prompt_keys: Sequence[str], completion_key: str
) -> Iterator[tuple[str, str]]:
    r"""Give the prompts and completions of a record.

    A key with dots goes into objects within, and into each object of a list: then there are as
    many pairs as the list has items, and fields outside it belong to each. Several prompt keys
    are joined by a blank line, empty ones left out.

    >>> record = {"task": "Add.", "cases": [{"in": "1+1", "out": "2"}, {"in": "2+2", "out": "4"}]}
    >>> list(pairs_of(record, ["task", "cases.in"], "cases.out"))
    [('Add.\n\n1+1', '2'), ('Add.\n\n2+2', '4')]
    """
    prompts = [texts_of(record, key) for key in prompt_keys]
    every = *prompts, texts_of(record, completion_key)
    lengths = {len(found) for found in every if isinstance(found, list)}
    if len(lengths) > 1:
        raise BadRecord("unequal numbers of prompts and completions")
    for number in range(lengths.pop() if lengths else 1):
        *parts, answer = (one if isinstance(one, str) else one[number] for one in every)
        yield "\n\n".join(filter(None, parts)), answer


Spans = tuple[Sequence[tasks.Span], ...]
"""A conversation as it is written, for each stream."""

_EMPTY = "an empty prompt or completion"
_USUAL = ("messages", "conversations")  # keys of conversations, where none is named


class SftSettings(TurnSettings):
    """Settings of :class:`SftTask`."""

    makes: ClassVar[str] = "prompts and answers"

    name: Literal["sft"] = "sft"
    prompt_key: Keys = setting(
        (),
        "Key of prompts; a,b joins, a.b goes into lists of pairs.",
        shown="prompt",
        metavar="KEY",
    )
    completion_key: str = setting("", "Key of completions.", shown="completion", metavar="KEY")
    messages_key: str = setting(
        "", "Key of conversations.", shown="messages or conversations", metavar="KEY"
    )
    pairs: Literal["documents", "turns"] = setting(
        "documents", "What several pairs of one record become: documents, or turns of one."
    )


class SpanTask(tasks.Task):
    """A task of conversations; a document is the spans of one, for each stream."""

    masked = True

    def __init__(self, settings: TurnSettings, tokenizer: Tokenizer, clean: tasks.Clean) -> None:
        self._clean = clean
        self._encoder = tasks.SpanEncoder(tokenizer, settings.bos)
        self._write = ConversationFormatter(settings, tokenizer)

    def texts(self, document: Spans, stream: str | None = None) -> list[str]:
        sides = zip(self.streams, document, strict=True)
        spans = [span for name, side in sides if stream in (None, name) for span in side]
        return [span.content for span in spans if isinstance(span.content, str)]

    def encode(self, documents: Sequence[Spans]) -> list[tuple[tasks.Encoded, ...] | tasks.Dropped]:
        streams = [self._encoder.encode(side) for side in zip(*documents, strict=True)]
        made: list[tuple[Any, ...]] = [*zip(*streams, strict=True)]
        # A document in all its streams, or why one of them is left out.
        return [next((o for o in one if isinstance(o, tasks.Dropped)), one) for one in made]


class SftTask(SpanTask):
    """See `Task`."""

    def __init__(self, settings: SftSettings, tokenizer: Tokenizer, clean: tasks.Clean) -> None:
        super().__init__(settings, tokenizer, clean)
        self._settings = settings
        if settings.prompt_key and settings.completion_key:
            keys = (*settings.prompt_key, settings.completion_key)  # a.b is in the column a
            self.keys = tuple(dict.fromkeys(key.split(".")[0] for key in keys))

    def prepare(self, record: tasks.Record) -> tasks.Prepared:
        settings = self._settings
        if key := settings.messages_key or self._usual_key(record):
            conversation = conversation_of(record, key)
            self._write.check_roles_are_told()
            documents = [self._conversation(conversation.cleaned(self._clean))]
            return tasks.Prepared(documents, conversation.contents())
        prompts, completion = settings.prompt_key or ("prompt",), settings.completion_key
        found = list(pairs_of(record, prompts, completion or "completion"))
        cleaned = [(self._clean(prompt), self._clean(answer)) for prompt, answer in found]
        return tasks.Prepared(self._pairs(cleaned), [text for pair in found for text in pair])

    def _usual_key(self, record: tasks.Record) -> str | None:
        if self._settings.prompt_key or self._settings.completion_key:
            return None
        return next((key for key in _USUAL if key in record), None)

    def _pairs(self, pairs: list[tuple[str, str]]) -> list[Spans | tasks.Dropped]:
        if self._settings.pairs == "turns" and not all(map(all, pairs)):
            raise tasks.Dropped(_EMPTY)
        turns = [[("user", prompt, False), ("assistant", answer, True)] for prompt, answer in pairs]
        if self._settings.pairs == "turns":
            turns = [[one for turn in turns for one in turn]]
        return [
            self._conversation(Conversation.of(turn))
            if all(words for _, words, _ in turn)
            else tasks.Dropped(_EMPTY)
            for turn in turns
        ]

    def _conversation(self, conversation: Conversation) -> Spans:
        if self._settings.train_on == "last":
            conversation = conversation.last_only()
        if not any(conversation.losses):
            raise tasks.Dropped("no answer to train on")
        return (self._write(conversation),)


tasks.register(SftSettings, SftTask)
