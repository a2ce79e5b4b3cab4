"""Which encoder a tokenizer gets, and what a conversion says of those that it used."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ConfigDict

from jaxdata.base.errors import InputError
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import CodePointSet, Encoder, EncoderName, Refused
from jaxdata.tokenizers.encoders.fast import FastokensEncoder
from jaxdata.tokenizers.encoders.guarded import (
    PASSAGE,
    GuardedEncoder,
    Verdict,
    keep_verdict,
    kept_verdict,
)
from jaxdata.tokenizers.encoders.trial import Progress, try_encoder
from jaxdata.tokenizers.encoders.words import WordsEncoder

_DOUBT = 3
"""Where n drawn texts or passages are equal, fewer than 3 / n of all such differ, with 95 %
confidence."""

_TIMED = 10_000  # microseconds of the library: less says nothing of its speed


class EncodingSummary(BaseModel):
    """What encoded the texts of a conversion.

    Attributes:
        library: the library that decides the ids, "tokenizers 0.23.3, Unicode 16.0"; None for
            our own tokenizers.
        counts: for each encoder ("fastokens 0.3.5"; "" for the library) what
            :class:`~jaxdata.tokenizers.encoders.GuardedEncoder` counted.
        reasons: why faster encoders were not used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: str | None
    counts: Mapping[str, Mapping[str, int]] = {}
    reasons: tuple[str, ...] = ()

    @property
    def remarkable(self) -> bool:
        """Whether there is more to say than that the library encoded, which needs no words."""
        return bool(self.reasons or any(self.counts))

    @property
    def encoder(self) -> str:
        """What encoded the most text."""
        most = max(self.counts, key=lambda name: self._count(name, "own characters"), default="")
        return most or self.library or ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the library the encoder was; None without an encoder.

        By processor time, of the library on the texts that both encoded.
        """
        return self._ratio(self.encoder)

    def _ratio(self, name: str) -> float | None:
        speeds = [
            self._count(name, f"{what} characters")
            / max(1, self._count(name, f"{what} microseconds"))
            for what in ("own", "both")
        ]
        return speeds[0] / speeds[1] if all(speeds) else None

    def _count(self, name: str, what: str) -> int:
        return self.counts.get(name, {}).get(what, 0)

    def lines(self) -> Iterator[str]:
        """Lines for people; none where no library decides the ids."""
        if self.library is None:
            return
        for name in sorted(filter(None, self.counts)):
            yield self._line(name)
        if "" in self.counts or not self.counts:
            why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
            yield f"encoded by {self.library}{why}"

    def _line(self, name: str) -> str:
        texts, both, left = (self._count(name, f"{what} texts") for what in ("all", "both", "left"))
        ratio, timed = self._ratio(name), self._count(name, "both microseconds") >= _TIMED
        speed = f", {ratio:,.1f} times as fast as {self.library}" if ratio and timed else ""
        cut = self._count(name, "cut texts")
        parts, what = (
            (f", {cut:,} of them by {PASSAGE:,} of their characters", " of what is compared so")
            if cut
            else ("", "")
        )
        sure = f": with 95 % confidence fewer than 1 in {both // _DOUBT:,}{what} differ"
        every = both + left >= texts and not cut
        bound = sure if both >= 100 * _DOUBT and not every else ""
        rest = f"; {left:,} left to the library" if left else ""
        compared = f"{both:,} of {texts:,} texts compared{parts}, all equal{bound}"
        return f"encoded by {name}{speed}; {compared}{rest}"


ENCODERS: list[type[Encoder]] = [FastokensEncoder, WordsEncoder]
WORTH_A_TRIAL = 64 * 2**20
"""Bytes of text from which `auto` takes an encoder that needs a trial: that takes 5 to 20 seconds,
and to make the encoder half a second of each worker."""


_log = logging.getLogger("jaxdata")


@dataclass(frozen=True)
class Choice:
    """How texts are encoded; sent to workers.

    Attributes:
        name: "fast", "words" or "library".
        version: what encodes, "fastokens 0.3.5"; "" for the library.
        left: ranges of code points that are left to the library.
        everything: compare every text with the library, not a sample.
        reasons: why faster encoders were not chosen, by name.
    """

    name: str = "library"
    version: str = ""
    left: tuple[tuple[int, int], ...] = ()
    everything: bool = False
    reasons: tuple[str, ...] = ()


def choose(
    tokenizer: Tokenizer,
    asked: EncoderName,
    *,
    text_bytes: int,
    without: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> Choice:
    """Choose an encoder, trying those that were not tried before.

    Args:
        tokenizer: the tokenizer.
        asked: what `--encoder` says.
        text_bytes: bytes of text to encode, for `auto`: see `WORTH_A_TRIAL`.
        without: versions that gave other ids on the text, which are not chosen.
        progress: called with the texts of a trial that are done, and their total.

    Raises:
        InputError: the encoder that is asked for by name cannot be had; the text says why.
    """
    check_encoder(asked)
    if asked == "library":
        return Choice()
    reasons = []
    for kind in ENCODERS:
        if asked not in (kind.name, "auto", "verify"):
            continue
        if asked != kind.name and tokenizer.kind not in kind.kinds:
            continue
        if asked == "auto" and kind.needs_trial and text_bytes < WORTH_A_TRIAL:
            continue
        try:
            version, verdict = _admitted(kind, tokenizer, without, progress)
        except Refused as reason:
            reasons.append(f"{kind.name}: {reason}")
        else:
            return Choice(kind.name, version, tuple(verdict.left), asked == "verify", (*reasons,))
    if asked not in ("auto", "verify"):
        raise InputError(
            f"--encoder {asked} cannot encode for tokenizer {tokenizer.name!r}: "
            f"{reasons[0].partition(': ')[2]}. --encoder auto takes whatever can"
        )
    return Choice(reasons=tuple(reasons))


def check_encoder(asked: str) -> None:
    """Raise InputError unless it is a value of `--encoder`."""
    if asked not in get_args(EncoderName):
        raise InputError(f"encoder={asked!r}; expected one of {get_args(EncoderName)}")


def _admitted(
    kind: type[Encoder],
    tokenizer: Tokenizer,
    without: frozenset[str],
    progress: Progress | None,
) -> tuple[str, Verdict]:
    """The version of an encoder and the verdict that admits it; raises Refused."""
    if tokenizer.kind not in kind.kinds:
        raise Refused(f"it is not for {tokenizer.kind} tokenizers")
    version = kind.version()
    if version in without:
        raise Refused("it gave other ids than the library on this text")
    verdict = kept_verdict(tokenizer, version)
    if verdict is None and not kind.needs_trial:
        kind(tokenizer)
        verdict = Verdict()
    elif verdict is None:
        _log.warning("trying %s on the tokenizer %r: some seconds, once", version, tokenizer.name)
        verdict = try_encoder(kind, tokenizer, progress)
        keep_verdict(tokenizer, version, verdict)
    if verdict.refused:
        raise Refused(verdict.refused)
    return version, verdict


def refuse(tokenizer: Tokenizer, version: str, reason: str) -> None:
    """Remember that an encoder gave other ids after its trial: it is not used again."""
    keep_verdict(tokenizer, version, Verdict(refused=reason))


def attach(tokenizer: Tokenizer, choice: Choice) -> None:
    """Let a tokenizer encode by what was chosen; by its library where that is not the same here."""
    kind = next((kind for kind in ENCODERS if kind.name == choice.name), None)
    tokenizer.guard = None
    try:
        if kind is None or kind.version() != choice.version:
            return
        encoder = kind(tokenizer)
    except Refused:
        return
    tokenizer.guard = GuardedEncoder(
        encoder,
        choice.version,
        lambda texts: tokenizer.encode_texts(texts, False),
        CodePointSet(choice.left),
        everything=choice.everything,
    )
