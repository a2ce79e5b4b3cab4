"""Which encoder a tokenizer gets, after a trial; what guards its ids; what a conversion says of it.

A trial compares it with the library, at every code point and on texts that are hard.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from pydantic import BaseModel, ConfigDict

from jaxdata.base.errors import InputError, digest, log
from jaxdata.base.progress import progress_bar
from jaxdata.storage.cached_files import find_kept, keep
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import (
    CodePoints,
    Encoder,
    EncoderDiffers,
    EncoderName,
    Refused,
    shown,
)
from jaxdata.tokenizers.encoders.fast import FastokensEncoder
from jaxdata.tokenizers.encoders.words import WordsEncoder

_VERSION = 4
"""Counts up when trials change, so that what an earlier one found is not taken."""
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


class Verdict(BaseModel):
    """What a trial found.

    Attributes:
        refused: why the encoder may not be used; None where it may.
        left: ranges of code points that are left to the library, both ends included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    refused: str | None = None
    left: tuple[tuple[int, int], ...] = ()


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
    tokenizer.guard = None
    for kind in ENCODERS:
        with suppress(Refused):
            if kind.name == choice.name and kind.version() == choice.version:
                tokenizer.guard = GuardedEncoder(kind(tokenizer), choice, tokenizer)


def kept_verdict(tokenizer: Tokenizer, versions: Sequence[str]) -> Verdict | None:
    """The verdict on an encoder for a tokenizer, given both libraries' versions; None before it."""
    for store, name in find_kept(_name(tokenizer, versions), None):
        with suppress(ValueError):
            if data := store.read(name):
                return Verdict.model_validate_json(data)
    return None


def keep_verdict(tokenizer: Tokenizer, versions: Sequence[str], verdict: Verdict) -> None:
    """Keep a verdict, where the user's cache can be written."""
    data = verdict.model_dump_json(indent=1).encode() + b"\n"
    with suppress(OSError, ValueError):
        keep(_name(tokenizer, versions), None, lambda store, name: store.write(name, data))


def _name(tokenizer: Tokenizer, versions: Sequence[str]) -> str:
    """A digest of whatever a verdict depends on."""
    facts = [tokenizer.checksums, _VERSION, unicodedata.unidata_version, *versions]
    return f"encoders/{digest(facts)[:32]}.json"


_ONE_IN = 256
"""Of how many texts of a unit one is encoded by the library too."""
_PASSAGE = 4_096
"""Characters of a long text that are compared."""
# The regular expressions of tiktoken fail, and print, from 999,999 spaces in a row: where it is the
# library, the others must not succeed.
_LONG = 500_000
_MANY_SPACES = re.compile(r"(?<!\s)\s{50000}")


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
        doubtful |= {n for n, t in enumerate(texts) if len(t) >= _LONG and _MANY_SPACES.search(t)}
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


def try_encoder(kind: type[Encoder], tokenizer: Tokenizer) -> Verdict:
    """Compare an encoder with the library.

    Code points that Python's Unicode tables lack, and those of the private planes, are left to the
    library, so that they need no trial; all others are encoded by both, in contexts.
    """
    try:
        kind.check(tokenizer)
        encoder = kind(tokenizer)
    except Refused as reason:
        return Verdict(refused=str(reason))
    known = _known()
    texts = [_CONTEXTS.format(one) + unicodedata.normalize("NFD", one) for one in known]
    pairs = zip(known, _wrong(encoder, tokenizer, texts), strict=True)
    differing = sorted({code for one, differs in pairs if differs for code in _involved(one)})
    if any(code < 128 for code in differing) or len(differing) > _MOST:
        first = shown("".join(map(chr, differing[:4])))
        return Verdict(refused=f"it does {len(differing):,} characters otherwise, as {first}")
    lacking = np.ones(0x110000, np.bool_)
    lacking[[*map(ord, known)]] = False
    lacking[differing] = True
    left = _ranges(lacking)
    hard = [*hard_texts(tokenizer)]
    doubtful = {*CodePoints(left).found_in(hard)}
    hard = [text for n, text in enumerate(hard) if n not in doubtful]
    for text, differs in zip(hard, _wrong(encoder, tokenizer, hard), strict=True):
        if differs:
            return Verdict(refused=f"it gives other ids for {shown(text)}")
    return Verdict(left=left)


def _known() -> list[str]:
    """The characters that Python's Unicode tables have, but for the private planes."""
    every = map(chr, range(0xF0000))
    return [one for one in every if unicodedata.category(one) not in ("Cn", "Cs")]


def _wrong(encoder: Encoder, library: Tokenizer, texts: Sequence[str]) -> Iterator[bool]:
    """Whether the encoder gives other ids, by text; not where it fails, as the library encodes."""
    with progress_bar(f"texts on which {encoder.name} is tried") as progress:
        for first in range(0, len(texts), _BATCH):
            batch = texts[first : first + _BATCH]
            both = zip(encoder.encode_each(batch), library.encode_texts(batch, False), strict=True)
            yield from (one is not None and not np.array_equal(one, other) for one, other in both)
            progress(first + len(batch), len(texts))


def _involved(character: str) -> Iterator[int]:
    """Its code point, and those that NFC composes it of; accents, which are everywhere, aside."""
    yield ord(character)
    for part in map(ord, unicodedata.normalize("NFD", character)):
        if part >= 128 and part not in _ACCENTS:
            yield part


def _ranges(chosen: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The code points of a table, bool (0x110000,), as ranges, both ends included."""
    steps = np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]]))
    first, after = (np.flatnonzero(steps == step).tolist() for step in (1, -1))
    return tuple(zip(first, (end - 1 for end in after), strict=True))


_PARTS = (
    "a B the Word ION iPhone \u00e9 \u00df \u0130 \u0131 \u017f 's 'S 't 're 'VE 'll 'LL '\u017f "
    "' '' \u2019s 'sa 'd1 0 1 12 123 1234 12345678 \u0664\u0662 \u00b2 \u2167 \u00bd \u0bf0 "
    "! ... ?! // /* */ -- => () [] {} <| |> _ __ # \\ <|endoftext|> <|im_start|> </s> <s> [INST] "
    "<|fim_prefix|> <0x0A> <unk> \u4e2d\u6587 \u65e5\u672c\u8a9e\u306e \u30ab\u30bf\u30fc "
    "\ud55c\uad6d \u1112\u1161\u11ab \u0440\u0443\u0441 \u0623\u0644\u0639 \u05e9\u05dc "
    "\u0939\u093f\u0928\u094d \u0e20\u0e32 e\u0301 \u0301 o\u0308\u0323 \u0344 \u1e9b\u0323 \u2126 "
    "\u0958 \ufb01 \u212a \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 "
    "\U0001f1e9\U0001f1ea \u2764\ufe0f \u200b \u180e \ufeff \u200d \u00ad \x00 \x01 \x1b[0m \x7f "
    "\ufffd \ufffe \U0001d400 \U00020000 \ue000"
)
_SPACES = ("\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\v\f")
_OTHER_SPACES = ("\u00a0", "\u0080", "\u0085", "\u2028", "\u3000")
_RUNS = tuple(" " * count for count in (1, 2, 3, 8, 25))
_FRAGMENTS = (*_PARTS.split(" "), *_SPACES, *_OTHER_SPACES, *_RUNS)
_WHOLE = (
    *("", "a" * 2_000, "ab" * 1_000, "aaa " * 500, "A" * 300 + "a" * 300, "9" * 1_000),
    *(" " * 3_000, "\n" * 1_000, " \n" * 500 + "x", "\t " * 500 + "x", "!" * 1_000, "-=" * 500),
    *("\u4e2d" * 500, "e\u0301" * 500, "\u0301" * 100, "\U0001f600" * 200),
    "x" + " " * 200 + "y" + " " * 201,
    "if x:\n" + "".join(f"{' ' * n}y = {n}\n" for n in range(60)),
    "I'm you're he's we'll they'd I've don't O'Neill 'quoted' 'Tis rock'n'roll",
    "I'M YOU'RE HE'S WE'LL THEY'D I'VE DON'T camelCaseWords SCREAMING_SNAKE kebab-case",
    "3.14159 1,000,000 0x1F 1e-9 2026-11-22T22:40:00Z 192.168.0.1 +49 30 123456",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\Users\\x\\file.txt",
    '{"key": [1, 2.5, null, true], "text": "line\\nbreak \\u00e9"}',
    "def f(x, *, y=None):\n\treturn x  # comment\r\n\r\n\r\n$a = b_1 + c2d3 << 4; \u00fc\u00df\n",
)


def hard_texts(tokenizer: Tokenizer, count: int = 20_000) -> Iterator[str]:
    """Give texts: of each token, fixed ones, and as many made of fragments and added tokens.

    Always the same ones. Tokens that the merges do not make show what takes whole words for tokens.
    """
    draw = random.Random("naughty")
    own = getattr(tokenizer, "settings", {}).get("added_tokens", ())
    added = [*tokenizer.special_tokens, *(one["content"] for one in own)]
    fragments = [*_FRAGMENTS, *added, *(unicodedata.normalize("NFC", one) for one in added)]
    yield from _WHOLE
    yield from fragments
    for number in range(count):
        yield "".join(draw.choice(fragments) for _ in range(1 + number % 16))
    for piece in tokenizer.piece_bytes():
        with suppress(UnicodeDecodeError):
            yield piece.decode()
