"""Which encoder a tokenizer gets, what guards its ids, and what a conversion says of it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from pydantic import BaseModel, ConfigDict

from jaxdata.base.errors import InputError, log
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import (
    CodePoints,
    Encoder,
    EncoderDiffers,
    EncoderName,
    Refused,
)
from jaxdata.tokenizers.encoders.fast import FastokensEncoder
from jaxdata.tokenizers.encoders.trial import Verdict, keep_verdict, kept_verdict, try_encoder
from jaxdata.tokenizers.encoders.words import WordsEncoder

ENCODERS: list[type[Encoder]] = [FastokensEncoder, WordsEncoder]
"""One for each kind of tokenizer."""
_LIBRARIES = {"hf": "tokenizers", "tiktoken": "tiktoken", "sentencepiece": "sentencepiece"}
_LEAST = 2**20
"""Bytes of text below which the library is done before another encoder is made."""


def library_of(kind: str) -> str | None:
    """The library that decides the ids of a kind of tokenizer, "tokenizers 0.23.3"; None: ours."""
    return f"{_LIBRARIES[kind]} {version(_LIBRARIES[kind])}" if kind in _LIBRARIES else None


@dataclass(frozen=True)
class Choice:
    """How texts are encoded; sent to workers.

    Attributes:
        name: "fast", "words" or "library".
        version: what encodes, "fastokens 0.3.5"; "" for the library.
        left: ranges of code points that are left to the library.
        reason: why the encoder of its kind was not chosen; "" where it was, or there is none.
    """

    name: str = "library"
    version: str = ""
    left: tuple[tuple[int, int], ...] = ()
    reason: str = ""


def choose(tokenizer: Tokenizer, asked: EncoderName, *, text_bytes: int) -> Choice:
    """Choose the encoder of a tokenizer, or its library; tries one that was not tried before.

    Args:
        tokenizer: the tokenizer.
        asked: what `encoder` says.
        text_bytes: bytes of text to encode: `auto` tries nothing where little is to be gained.

    Raises:
        InputError: the encoder that is asked for by name cannot be had; the text says why.
    """
    kind = next((kind for kind in ENCODERS if tokenizer.kind in kind.kinds), None)
    if kind is None or asked not in (kind.name, "auto"):
        if asked in ("library", "auto"):
            return Choice()
        raise _not_to_be_had(tokenizer, asked, f"it is not for {tokenizer.kind} tokenizers")
    if asked == "auto" and text_bytes < min(kind.trial_bytes, _LEAST):
        return Choice()
    little = asked == "auto" and text_bytes < kind.trial_bytes
    try:
        found, verdict = _admitted(kind, tokenizer, tries=not little)
    except Refused as reason:
        if asked == kind.name:
            raise _not_to_be_had(tokenizer, asked, str(reason)) from None
        return Choice() if little else Choice(reason=f"{kind.name}: {reason}")
    return Choice(kind.name, found, verdict.left)


def _not_to_be_had(tokenizer: Tokenizer, asked: str, reason: str) -> InputError:
    return InputError(
        f"--set encoder={asked} cannot encode for tokenizer {tokenizer.name!r}: {reason}. "
        "--set encoder=auto takes whatever can"
    )


def _admitted(kind: type[Encoder], tokenizer: Tokenizer, *, tries: bool) -> tuple[str, Verdict]:
    """The version of an encoder and the verdict that admits it; raises Refused.

    Where it `tries` nothing, an encoder that was not tried before is refused.
    """
    found = kind.version()
    versions = found, str(library_of(tokenizer.kind))
    verdict = kept_verdict(tokenizer, versions)
    if verdict is None and not kind.trial_bytes:
        kind(tokenizer)
        verdict = Verdict()
    elif verdict is None:
        if not tries:
            raise Refused("it was not tried")
        log.warning("trying %s on the tokenizer %r: some seconds, once", found, tokenizer.name)
        verdict = try_encoder(kind, tokenizer)
        keep_verdict(tokenizer, versions, verdict)
    if verdict.refused:
        raise Refused(verdict.refused)
    return found, verdict


def refuse(tokenizer: Tokenizer, differs: EncoderDiffers) -> None:
    """Remember that an encoder gave other ids after its trial: it is not used again."""
    versions = differs.encoder, str(library_of(tokenizer.kind))
    keep_verdict(tokenizer, versions, Verdict(refused=f"it gave other ids on a text: {differs}"))


def attach(tokenizer: Tokenizer, choice: Choice) -> None:
    """Let a tokenizer encode by what was chosen; by its library where that is not the same here."""
    kind = next((kind for kind in ENCODERS if kind.name == choice.name), None)
    tokenizer.guard = None
    try:
        if kind is not None and kind.version() == choice.version:
            tokenizer.guard = GuardedEncoder(kind(tokenizer), choice, tokenizer)
    except Refused:
        return


_ONE_IN = 256
"""Of how many texts of a unit one is encoded by the library too."""
_PASSAGE = 4_096
"""Characters of a long text that are compared."""
# The regular expressions of tiktoken fail, and print, from 999,999 spaces in a row: where it is the
# library, the others must not succeed.
_LONG = 500_000
_SPACES = re.compile(r"(?<!\s)\s{50000}")


class GuardedEncoder:
    """Encodes texts as the library does, most of them by an encoder.

    The library encodes texts with code points that the trial left to it, and those on which the
    encoder fails. One text in 256 of a unit, the first among them, is encoded by both, of a long
    one a passage in its middle.

    Attributes:
        name: of the encoder and its version, for receipts.
        counts: "texts"; those that the library encoded instead, "left"; and those that both did,
            "compared".
    """

    def __init__(self, encoder: Encoder, choice: Choice, tokenizer: Tokenizer) -> None:
        self.name = choice.version
        self.counts: Counter[str] = Counter()
        self._encoder, self._tokenizer = encoder, tokenizer
        self._doubtful = CodePoints(choice.left)

    def begin(self) -> None:
        """Begin a unit of work: its first text is compared in any case, and counts begin at 0."""
        self.counts = Counter()

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The library's ids of each text.

        Raises:
            EncoderDiffers: a text that was compared got other ids.
            CannotEncode: the library fails on one of the texts.
        """
        doubtful = {*self._doubtful.found_in(texts)}
        doubtful |= {n for n, t in enumerate(texts) if len(t) >= _LONG and _SPACES.search(t)}
        taken = [n for n in range(len(texts)) if n not in doubtful]
        own = self._encoder.encode_each([texts[n] for n in taken])
        found = {n: ids for n, ids in zip(taken, own, strict=True) if ids is not None}
        for n in range(-self.counts["texts"] % _ONE_IN, len(texts), _ONE_IN):
            if n in found:
                self._compare(texts[n], found[n])
        left = [n for n in range(len(texts)) if n not in found]
        others = self._tokenizer.encode_texts([texts[n] for n in left], False) if left else ()
        self.counts += Counter(texts=len(texts), left=len(left))
        found |= zip(left, others, strict=True)
        return [found[n] for n in range(len(texts))]

    def _compare(self, text: str, ids: np.ndarray) -> None:
        """Raise EncoderDiffers where the library gives other ids than these."""
        if len(text) > _PASSAGE:
            middle = (len(text) - _PASSAGE) // 2
            text = text[middle : middle + _PASSAGE]
            (again,) = self._encoder.encode_each([text])
            if again is None:
                return
            ids = again
        self.counts["compared"] += 1
        (expected,) = self._tokenizer.encode_texts([text], False)
        if not np.array_equal(ids, expected):
            raise EncoderDiffers(self.name, text)


class EncodingSummary(BaseModel):
    """What encoded the texts of a conversion.

    Attributes:
        library: the library that decides the ids, "tokenizers 0.23.3"; None for our own tokenizers.
        counts: for each encoder ("fastokens 0.3.5"; "" for the library) what
            :class:`~jaxdata.tokenizers.encoders.GuardedEncoder` counted.
        reason: why no faster encoder was used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: str | None
    counts: Mapping[str, Mapping[str, int]] = {}
    reason: str = ""

    def lines(self) -> Iterator[str]:
        """Lines for people; that the library alone encoded needs no words, unless there is why."""
        if self.library is None or not (self.reason or any(self.counts)):
            return
        for name in sorted(filter(None, self.counts)):
            texts, left, compared = (
                self.counts[name].get(what, 0) for what in ("texts", "left", "compared")
            )
            rest = f"; {left:,} left to {self.library}" if left else ""
            yield f"encoded by {name}; {compared:,} of {texts:,} texts compared, all equal{rest}"
        if "" in self.counts or not self.counts:
            yield f"encoded by {self.library}" + (f" ({self.reason})" if self.reason else "")
