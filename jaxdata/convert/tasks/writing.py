"""Conversations as pieces that end with the end of a document: by a chat template, or plainly."""

from __future__ import annotations

import re
from dataclasses import replace

from jaxdata.convert.records import BadRecord
from jaxdata.convert.tasks.conversations import Conversation
from jaxdata.convert.tasks.pieces import Piece
from jaxdata.convert.tasks.templates import ChatTemplate
from jaxdata.convert.tasks.turns import AFFIXES, TurnSettings, turn_pieces
from jaxdata.tokenizers import Tokenizer

__all__ = ["Writer"]


class Writer:
    """Writes conversations as some settings say.

    Args:
        settings: the template, and what it gets and may see.
        tokenizer: whose special tokens templates write.
    """

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

    def __call__(self, conversation: Conversation) -> list[Piece]:
        """The pieces of a conversation, EOD the last; raises BadRecord where there are none."""
        if self._template is None:
            return turn_pieces(conversation, self._settings, self._eod)
        self._check(conversation)
        return self._ended(self._template.pieces(conversation))

    def check_roles_are_told(self) -> None:
        """Raise BadRecord where nothing would say who speaks."""
        if self._template is None and not any(getattr(self._settings, name) for name in AFFIXES):
            raise BadRecord(
                "a conversation, and neither a chat template nor prefixes to write it with "
                "(--chat-template, or --prompt-prefix and --completion-prefix)"
            )

    def _check(self, conversation: Conversation) -> None:
        """Raise BadRecord where a message would forge what only the template may write."""
        for text in conversation.strings():
            if self._special and (found := self._special.search(text)):
                raise BadRecord(f"a message holds the special token {found.group()!r}")
            if "\ufdd0" in text or "\ufdd1" in text:
                raise BadRecord("a message holds a code point that is no character")

    def _ended(self, pieces: list[Piece]) -> list[Piece]:
        """With EOD at the end, once; it has loss where it alone says that an answer is over."""
        whole = "".join(str(piece.content) for piece in pieces)
        written = whole.rstrip()
        if self._eod_text and written.endswith(self._eod_text):
            # What a template writes after its last token ("\n") begins the next turn.
            return _cut(pieces, len(whole) - len(written))
        over = written.endswith(self._special_texts)
        return [*pieces, Piece(self._eod, pieces[-1].loss and not over)]


def _cut(pieces: list[Piece], count: int) -> list[Piece]:
    """Pieces without their last `count` characters."""
    *before, last = pieces
    text = str(last.content)
    if count < len(text):
        return [*before, replace(last, content=text[: len(text) - count])]
    return _cut(before, count - len(text))
