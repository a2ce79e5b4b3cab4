"""Fill in the middle: a text's middle is moved after its prefix and suffix."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyArray
from jaxdata.base.seeds import derive
from jaxdata.base.settings import setting
from jaxdata.converter.tasks import Clean, Dropped, Encoded, Rate, Span, SpanEncoder, register
from jaxdata.converter.tasks.lm import TextSettings, TextTask
from jaxdata.tokenizers import SpecialToken, Tokenizer

_FILLED = 15 / 16  # what pieces aim at: some parts of a text have more tokens than others
_NEAR = 1 / 8  # of a piece: how far before its end a line's end is looked for


def divide(text: str, count: int) -> list[str]:
    r"""Cut a text into parts of about the same size, after the end of a line where one is near.

    >>> divide("one two three\nfour five six\n", 2), divide("one", 9)
    (['one two three\n', 'four five six\n'], ['o', 'n', 'e'])
    """
    count = min(count, len(text))
    near = int(_NEAR * len(text) / count)
    evenly = [len(text) * number // count for number in range(1, count)]
    edges = [text.rfind("\n", at - near, at) + 1 or at for at in evenly]
    return [text[start:stop] for start, stop in pairwise([0, *edges, len(text)])]


# prefix, middle, suffix as code models call them
_KNOWN = (
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    ("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"),
    ("<PRE>", "<MID>", "<SUF>"),
    ("[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>", "<\uff5cfim\u2581hole\uff5c>"),
)
_OWN = "the tokenizer's"
_LEAST = 64  # room for the sentinels and any character


def _check_context(context: int) -> int:
    if context and context < _LEAST:
        raise ValueError(f"expected {_LEAST} tokens or more, or 0 to rearrange documents whole")
    return context


class FimSettings(TextSettings):
    """Settings of :class:`FimTask`."""

    makes: ClassVar[str] = "text to fill in the middle"

    name: Literal["fim"] = "fim"
    fim_rate: Rate = setting(0.9, "Share of documents that are rearranged.")
    spm_rate: Rate = setting(0.5, "Share of the rearranged documents with the suffix first.")
    fim_prefix: SpecialToken = setting(None, "Token before the prefix, by text or id.", shown=_OWN)
    fim_middle: SpecialToken = setting(None, "Token before the middle, by text or id.", shown=_OWN)
    fim_suffix: SpecialToken = setting(None, "Token before the suffix, by text or id.", shown=_OWN)
    fim_context: Annotated[int, AfterValidator(_check_context)] = setting(
        2_048,
        "Rearrange documents of more tokens than this in pieces that fit it: the seq_len to train "
        "with. 0: whole, however long.",
    )


class FimTask(TextTask):
    """See `Task`; a document is its text."""

    def __init__(self, settings: FimSettings, tokenizer: Tokenizer, clean: Clean) -> None:
        super().__init__(settings, clean)
        self._settings = settings
        self._sentinels = _find_sentinels(settings, tokenizer)
        self._eod = tokenizer.eod_id
        self._encoder = SpanEncoder(tokenizer, settings.bos)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded, ...] | Dropped]:
        end = Span(self._eod, True)
        encoded = self._encoder.encode([[*self._spans(text), end] for text in documents])
        return [
            one if isinstance(one, Dropped) else self._fitted(text, one.tokens)
            for text, one in zip(documents, encoded, strict=True)
        ]

    def _spans(self, text: str, continues: bool = False) -> list[Span]:
        """A text in the order that a model is to learn; it may continue another.

        PSM is PRE prefix SUF suffix MID middle; SPM is PRE SUF suffix MID prefix middle. In SPM
        the middle continues the prefix, without a token between them. Chance decides, and the same
        text and rates always give the same.
        """
        settings = self._settings
        digest = hashlib.sha256(text.encode()).hexdigest()

        def drawn(name: str, count: int) -> int:
            return derive(0, "fim", name, digest) % count

        if drawn("rate", 2**64) >= settings.fim_rate * 2**64:
            return [Span(text, True, continues=continues)]
        start, stop = sorted(drawn(edge, len(text) + 1) for edge in ("one edge", "other edge"))
        prefix = Span(text[:start], True, continues=continues)
        middle, suffix = Span(text[start:stop], True), Span(text[stop:], True)
        pre, mid, suf = (Span(sentinel, True) for sentinel in self._sentinels)
        if drawn("spm", 2**64) < settings.spm_rate * 2**64:
            return [pre, suf, suffix, mid, prefix, middle]
        return [pre, prefix, suf, suffix, mid, middle]

    def _fitted(self, text: str, whole: AnyArray) -> tuple[Encoded] | Dropped:
        """The document: as a whole, or cut into pieces if that does not fit the context."""
        context = self._settings.fim_context
        if not context or len(whole) <= context:
            return (Encoded(whole),)
        try:
            pieces = [*self._pieces(text, len(whole), context - 1)]  # EOD ends the last
        except Dropped as dropped:
            return dropped
        cuts = accumulate(map(len, pieces[:-1]))
        return (Encoded(np.concatenate([*pieces, whole[-1:]]), cuts=tuple(cuts)),)

    def _pieces(
        self, text: str, tokens: int, room: int, continues: bool = False
    ) -> Iterator[AnyArray]:
        """The ids of a text in pieces of at most `room`; a single character may have more.

        `tokens` are those of the whole, more than `room`; it may continue another text.
        """
        parts = divide(text, max(2, ceil(tokens / (_FILLED * room))))
        later = [continues or number > 0 for number in range(len(parts))]
        encoded = self._encoder.encode([*map(self._spans, parts, later)])
        for part, goes_on, one in zip(parts, later, encoded, strict=True):
            if isinstance(one, Dropped):
                raise one
            if len(one.tokens) <= room or len(part) == 1:
                yield one.tokens
            else:
                yield from self._pieces(part, len(one.tokens), room, goes_on)


def _find_sentinels(settings: FimSettings, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that were named, or the tokenizer's own; raises InputError without."""
    named = [settings.fim_prefix, settings.fim_middle, settings.fim_suffix]
    if named == [None] * 3:
        known = ([tokenizer.token_id(text) for text in triple] for triple in _KNOWN)
        found = next((ids for ids in known if None not in ids), [None] * 3)
    else:
        roles = ("fim-prefix", "fim-middle", "fim-suffix")
        found = [tokenizer.special_id(*one) for one in zip(roles, named, strict=True)]
    ids = [i for i in found if i is not None]
    if len(set(ids)) < 3:
        raise InputError(
            f"task fim needs three different tokens of {tokenizer.name!r} before prefix, middle "
            f"and suffix; found {found}. Name them by text or id with fim_prefix, fim_middle "
            "and fim_suffix; --add-special adds some to a vocabulary"
        )
    return ids


register(FimSettings, FimTask)
