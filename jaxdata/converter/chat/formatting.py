"""Conversations as spans that end with EOD, written by a chat template or by prefixes."""

from __future__ import annotations

import re
from dataclasses import replace

from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.templates import ChatTemplate
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks.conversation_turns import AFFIXES, TurnSettings, turn_spans
from jaxdata.converter.tasks.spans import Span
from jaxdata.tokenizers import Tokenizer


class ConversationFormatter:
    """Writes conversations by a chat template, or by prefixes."""

    def __init__(self, settings: TurnSettings, tokenizer: Tokenizer) -> None:
        self._settings, self._eod = settings, tokenizer.eod_id
        special = tokenizer.special_tokens
        by_id = {i: text for text, i in special.items()}
        self._eod_text = by_id.get(self._eod)
        ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eod_id, "pad": tokenizer.pad_id}
        variables = {f"{role}_token": by_id.get(i, "") for role, i in ids.items() if i is not None}
        self._special_texts = tuple(special)
        found = "|".join(map(re.escape, special))
        self._special = re.compile(found) if found and not settings.allow_special else None
        self._template = None
        if settings.chat_template is not None:
            self._template = ChatTemplate(
                settings.chat_template,
                variables | settings.template_variables,
                special,
                every_turn=settings.train_on == "all",
            )

    def __call__(self, conversation: Conversation) -> list[Span]:
        """Return the spans, EOD last; raises BadRecord if the conversation cannot be written."""
        if self._template is None:
            return turn_spans(conversation, self._settings, self._eod)
        self._check(conversation)
        return self._ended(self._template.spans(conversation))

    def check_roles_are_told(self) -> None:
        """Raise BadRecord if nothing would mark who speaks."""
        if self._template is None and not any(getattr(self._settings, name) for name in AFFIXES):
            raise BadRecord(
                "a conversation, and neither a chat template nor prefixes to write it with "
                "(--chat-template, or --prompt-prefix and --completion-prefix)"
            )

    def _check(self, conversation: Conversation) -> None:
        """Raise BadRecord if a message forges text that only the template may write."""
        for text in conversation.strings():
            if self._special and (found := self._special.search(text)):
                raise BadRecord(f"a message holds the special token {found.group()!r}")
            if "\ufdd0" in text or "\ufdd1" in text:
                raise BadRecord("a message holds a code point that is no character")

    def _ended(self, spans: list[Span]) -> list[Span]:
        """End with EOD once; it has loss if nothing else ends the answer."""
        whole = "".join(str(span.content) for span in spans)
        written = whole.rstrip()
        if self._eod_text and written.endswith(self._eod_text):
            # What a template writes after its last token ("\n") begins the next turn.
            return _cut(spans, len(whole) - len(written))
        over = written.endswith(self._special_texts)
        return [*spans, Span(self._eod, spans[-1].loss and not over)]


def _cut(spans: list[Span], count: int) -> list[Span]:
    """Spans without their last `count` characters."""
    *before, last = spans
    text = str(last.content)
    if count < len(text):
        return [*before, replace(last, content=text[: len(text) - count])]
    return _cut(before, count - len(text))
