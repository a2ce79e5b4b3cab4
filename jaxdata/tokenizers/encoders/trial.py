"""The trial of an encoder: every code point, and texts that are hard, against the library."""

import random
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from pydantic import BaseModel, ConfigDict

from jaxdata.base.facts import digest
from jaxdata.base.progress import progress_bar
from jaxdata.storage.cached_files import find_kept, keep
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import CodePoints, Encoder, Refused, shown

_VERSION = 4
"""Counts up when trials change, so that what an earlier one found is not taken."""


class Verdict(BaseModel):
    """What a trial found.

    Attributes:
        refused: why the encoder may not be used; None where it may.
        left: ranges of code points that are left to the library, both ends included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    refused: str | None = None
    left: tuple[tuple[int, int], ...] = ()


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
