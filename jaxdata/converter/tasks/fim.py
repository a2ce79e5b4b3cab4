"""Fill in the middle: a text's middle is moved after its prefix and suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from jaxdata.base.errors import InputError
from jaxdata.base.settings import setting
from jaxdata.converter.tasks.base import Clean, Dropped, Encoded, Rate, Span, SpanEncoder
from jaxdata.converter.tasks.lm import SEED, TextSettings, TextTask
from jaxdata.converter.tasks.random_choice import RandomChoice
from jaxdata.converter.tasks.registry import register
from jaxdata.tokenizers import SpecialToken, Tokenizer

_FILLED = 15 / 16  # what pieces aim at: some parts of a text have more tokens than others
_NEAR = 1 / 8  # of a piece: how far before its end a line's end is looked for

Encode = Callable[[Sequence[str], Sequence[bool]], Sequence[Encoded | Dropped]]
"""Encodes texts; each with whether it continues another."""


def fitting_pieces(
    text: str, tokens: int, room: int, encode: Encode, *, continues: bool = False
) -> Iterator[Encoded | Dropped]:
    """Encode a text in pieces of at most `room` tokens; a single character may have more.

    Args:
        text: at least one character.
        tokens: how many `encode` makes of the whole; more than `room`.
        room: tokens of a piece.
        encode: what encodes pieces. `Dropped` is given on.
        continues: whether the text itself continues another.
    """
    parts = divide(text, max(2, ceil(tokens / (_FILLED * room))))
    later = [continues or number > 0 for number in range(len(parts))]
    for part, goes_on, one in zip(parts, later, encode(parts, later), strict=True):
        if isinstance(one, Dropped) or len(one.tokens) <= room or len(part) == 1:
            yield one
        else:
            yield from fitting_pieces(part, len(one.tokens), room, encode, continues=goes_on)


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
    seed: int = setting(0, SEED)


class Sentinels(NamedTuple):
    """Ids of the tokens before each part."""

    prefix: int
    middle: int
    suffix: int


class FimTask(TextTask):
    """See `Task`; a document is its text."""

    def __init__(self, settings: FimSettings, tokenizer: Tokenizer, clean: Clean | None) -> None:
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
        chosen = middle_of(text, self._settings)
        if chosen is None:
            return [Span(text, True, continues=continues)]
        spm, start, stop = chosen
        parts = text[:start], text[start:stop], text[stop:]
        return lay_out(parts, spm, self._sentinels, continues=continues)

    def _fitted(self, text: str, whole: NDArray[Any]) -> tuple[Encoded] | Dropped:
        """The document: as a whole, or cut into pieces if that does not fit the context."""
        context = self._settings.fim_context
        if not context or len(whole) <= context:
            return (Encoded(whole),)
        room = context - 1  # EOD, which ends the last piece
        pieces = list(fitting_pieces(text, len(whole), room, self._encode_parts))
        if failed := next((piece for piece in pieces if isinstance(piece, Dropped)), None):
            return failed
        tokens = [piece.tokens for piece in pieces if isinstance(piece, Encoded)]
        cuts = accumulate(map(len, tokens[:-1]))
        return (Encoded(np.concatenate([*tokens, whole[-1:]]), cuts=tuple(cuts)),)

    def _encode_parts(
        self, texts: Sequence[str], continues: Sequence[bool]
    ) -> list[Encoded | Dropped]:
        return self._encoder.encode([*map(self._spans, texts, continues)])


def middle_of(text: str, settings: FimSettings) -> tuple[bool, int, int] | None:
    """Choose a text's order at random: whether SPM, and the middle's characters `[start, stop)`.

    None if it stays unchanged. The same text, rates and seed always give the same.
    """
    draw = RandomChoice(settings.seed, "fim", text)
    if not draw.happens("rate", settings.fim_rate):
        return None
    start, stop = sorted(draw.below(edge, len(text) + 1) for edge in ("one edge", "other edge"))
    return draw.happens("spm", settings.spm_rate), start, stop


def lay_out(
    parts: tuple[str, str, str], spm: bool, sentinels: Sentinels, *, continues: bool = False
) -> list[Span]:
    """Put prefix, middle and suffix in the order that a model is to learn.

    PSM is PRE prefix SUF suffix MID middle; SPM is PRE SUF suffix MID prefix middle. In SPM the
    middle continues the prefix, without a token between them. The prefix may continue a text.
    """
    prefix, middle, suffix = parts
    texts = Span(prefix, True, continues=continues), Span(middle, True), Span(suffix, True)
    pre, mid, suf = (Span(i, True) for i in sentinels)
    if spm:
        return [pre, suf, texts[2], mid, texts[0], texts[1]]
    return [pre, texts[0], suf, texts[2], mid, texts[1]]


def _find_sentinels(settings: FimSettings, tokenizer: Tokenizer) -> Sentinels:
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
            f"and suffix; found {found}. Name them by text or id with --fim-prefix, --fim-middle "
            "and --fim-suffix; --add-special adds some to a vocabulary"
        )
    return Sentinels(*ids)


register(FimSettings, FimTask)
