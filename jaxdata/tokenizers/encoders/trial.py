"""The trial of an encoder: every code point, and texts that are hard, against the library."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.encoders.code_points import CodePointSet, every_character, ranges_of
from jaxdata.tokenizers.encoders.guarded import shown
from jaxdata.tokenizers.encoders.library_tables import added_texts, unassigned
from jaxdata.tokenizers.encoders.naughty import naughty_texts
from jaxdata.tokenizers.encoders.verdicts import Verdict

Progress = Callable[[int, int], None]

_Ids = Sequence[np.ndarray | None]
_Encode = Callable[[Sequence[str]], _Ids]

_PRIVATE_PLANES = range(0xF0000, 0x110000)
_ACCENTS = range(0x300, 0x370)
_MOST = 1_000
"""Code points that may differ."""
_BATCH = 512
_CONTEXTS = (
    "{0}a{0} {0}1{0}'s{0}\n{0}{0}\r\n {0}  {0}\t{0}.{0}'{0}e A{0}b {0} \n\n{0}  a{0}'S"
    "{0}\u0301 a\u0301{0}\u0327 the{0}the 12{0}345 re'{0}'te E'{0}'lle{0}'ve '{0}ing {0}"
)
"""Before and after letters, digits, spaces, punctuation, 's, line ends, accents and itself.

Some of these merge into tokens, which shows where pieces begin: a rare character has none.
"""


def try_encoder(
    kind: type[Encoder], tokenizer: Tokenizer, progress: Progress | None = None
) -> Verdict:
    """Compare an encoder with the library; `progress` is called with texts done, and their total.

    Code points that the library's Unicode tables lack, and those of the private planes, are left to
    it, so that they need no trial; all others are encoded by both, in contexts.
    """
    try:
        kind.check(tokenizer)
        encoder = kind(tokenizer)
    except Refused as reason:
        return Verdict(refused=str(reason))
    untried = {*_PRIVATE_PLANES, *unassigned(tokenizer.kind).tolist()}
    trial = _Trial(encoder, tokenizer, progress)
    differing = trial.code_points(untried)
    if any(code < 128 for code in differing) or len(differing) > _MOST:
        first = shown("".join(map(chr, differing[:4])))
        return Verdict(refused=f"it does {len(differing):,} characters otherwise, as {first}")
    left = ranges_of(untried.union(differing))
    if (wrong := trial.naughty(CodePointSet(left))) is not None:
        return Verdict(refused=f"it gives other ids for {shown(wrong)}")
    return Verdict(left=left, differing=differing, ratio=trial.ratio)


class _Trial:
    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, progress: Progress | None) -> None:
        self._encoder, self._library, self._progress = encoder, tokenizer, progress
        self._seconds = [0.0, 0.0]
        self._done = self._total = 0

    @property
    def ratio(self) -> float:
        own, library = self._seconds
        return round(library / max(own, 1e-9), 1)

    def code_points(self, untried: set[int]) -> list[int]:
        """The code points that a text with them in contexts shows to differ."""
        codes = [code for code in map(ord, every_character()) if code not in untried]
        self._total = len(codes)
        texts = [_CONTEXTS.format(chr(code)) + _decomposed(code) for code in codes]
        pairs = zip(codes, self._wrong(texts), strict=True)
        return sorted({one for code, wrong in pairs if wrong for one in _involved(code)})

    def naughty(self, left: CodePointSet) -> str | None:
        """The first text that differs, of those that are not left to the library."""
        every = naughty_texts(added_texts(self._library))
        texts = [text for text in every if not left.found_in([text])]
        return next((t for t, wrong in zip(texts, self._wrong(texts), strict=True) if wrong), None)

    def _wrong(self, texts: Sequence[str]) -> Iterator[bool]:
        for first in range(0, len(texts), _BATCH):
            batch = texts[first : first + _BATCH]
            theirs = self._timed(1, lambda some: self._library.encode_texts(some, False), batch)
            for one, other in zip(self._timed(0, self._own, batch), theirs, strict=True):
                yield one is not None and other is not None and not np.array_equal(one, other)
            self._done += len(batch)
            if self._progress:
                self._progress(min(self._done, self._total), self._total)

    def _own(self, texts: Sequence[str]) -> _Ids:
        """Ids; None for a text that it fails on, which the library will encode."""
        try:
            return self._encoder.encode(texts)
        except CannotEncode:
            if len(texts) == 1:
                return [None]
        return [self._own([text])[0] for text in texts]

    def _timed(self, place: int, encode: _Encode, texts: Sequence[str]) -> _Ids:
        begin = time.process_time()
        ids = encode(texts)
        self._seconds[place] += time.process_time() - begin
        return ids


def _decomposed(code: int) -> str:
    return unicodedata.normalize("NFD", chr(code))


def _involved(code: int) -> Iterator[int]:
    """A code point, and those that NFC composes it of; accents, which are everywhere, aside."""
    yield code
    for part in map(ord, _decomposed(code)):
        if part >= 128 and part not in _ACCENTS:
            yield part
