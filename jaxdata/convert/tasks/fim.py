"""Fill in the middle: the middle of a text behind what stands around it.

What becomes of a document depends on its content and the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from jaxdata.convert.records import joined_text_of
from jaxdata.convert.tasks.base import Dropped, Encoded, Rate, Record
from jaxdata.convert.tasks.draws import Draw
from jaxdata.convert.tasks.lm import TextSettings
from jaxdata.convert.tasks.pieces import Piece, PieceEncoder
from jaxdata.errors import InputError
from jaxdata.tokenizers import SpecialToken, Tokenizer

__all__ = ["FimSettings", "FimTask", "Sentinels", "find_sentinels", "lay_out", "middle_of"]

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


class FimSettings(TextSettings):
    """Settings of :class:`FimTask`."""

    name: Literal["fim"] = "fim"
    fim_rate: Rate = 0.9
    """Share of documents that are rearranged."""
    spm_rate: Rate = 0.5
    """Share of those with the suffix before the prefix."""
    fim_prefix: SpecialToken = None
    fim_middle: SpecialToken = None
    fim_suffix: SpecialToken = None
    """The tokens, by text or id; None for the tokenizer's own."""
    seed: int = 0


class Sentinels(NamedTuple):
    """Ids of the tokens before each part."""

    prefix: int
    middle: int
    suffix: int


class FimTask:
    """See `Task`; a document is its text.

    Args:
        settings: rates, tokens, seed.
        tokenizer: text to ids.
        clean: what is done to a text before all else.
    """

    masked = False
    streams: tuple[str, ...] = ("",)

    def __init__(
        self, settings: FimSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None
    ) -> None:
        self._settings, self._clean = settings, clean or str
        self._sentinels = find_sentinels(settings, tokenizer)
        self._eod = tokenizer.eod_id
        self._encoder = PieceEncoder(tokenizer, settings.bos)
        self.keys = settings.text_keys
        self.plain = len(settings.text_keys) == 1

    def prepare(self, record: Record) -> list[str]:
        """See `Task`."""
        text = joined_text_of(record, self.keys, self._settings.text_joiner)
        return [self._clean(text)]

    def texts(self, document: str, _stream: str | None = None) -> tuple[str]:
        """See `Task`."""
        return (document,)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded, ...] | Dropped]:
        """See `Task`."""
        encoded = self._encoder.encode([self._pieces(text) for text in documents])
        return [one if isinstance(one, Dropped) else (Encoded(one.tokens),) for one in encoded]

    def _pieces(self, text: str) -> list[Piece]:
        chosen = middle_of(text, self._settings)
        if chosen is None:
            return [Piece(text, True), Piece(self._eod, True)]
        spm, start, stop = chosen
        parts = text[:start], text[start:stop], text[stop:]
        return [*lay_out(parts, spm, self._sentinels), Piece(self._eod, True)]


def middle_of(text: str, settings: FimSettings) -> tuple[bool, int, int] | None:
    """Draw what becomes of a text: whether SPM, and the middle's characters `[start, stop)`.

    None where it stays as it is. The same text, rates and seed always give the same.
    """
    draw = Draw(settings.seed, "fim", text)
    if not draw.happens("rate", settings.fim_rate):
        return None
    start, stop = sorted(draw.below(edge, len(text) + 1) for edge in ("one edge", "other edge"))
    return draw.happens("spm", settings.spm_rate), start, stop


def lay_out(parts: tuple[str, str, str], spm: bool, sentinels: Sentinels) -> list[Piece]:
    """Put prefix, middle and suffix in the order that a model is to learn.

    PSM is PRE prefix SUF suffix MID middle; SPM is PRE SUF suffix MID prefix middle. In SPM the
    middle goes on where the prefix ends, without a token between.
    """
    prefix, middle, suffix = parts
    texts = Piece(prefix, True, continues=False), Piece(middle, True), Piece(suffix, True)
    pre, mid, suf = (Piece(i, True) for i in sentinels)
    if spm:
        return [pre, suf, texts[2], mid, texts[0], texts[1]]
    return [pre, texts[0], suf, texts[2], mid, texts[1]]


def find_sentinels(settings: FimSettings, tokenizer: Tokenizer) -> Sentinels:
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
            f"and suffix, found {found}: name them, by text or id, with --fim-prefix, --fim-middle "
            "and --fim-suffix"
        )
    return Sentinels(*ids)
