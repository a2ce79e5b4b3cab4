"""The trial of an encoder: every code point, and texts that are hard, against the library."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import (
    CodePointSet,
    Encoder,
    Refused,
    added_texts,
    every_character,
    ranges_of,
    unassigned,
)
from jaxdata.tokenizers.encoders.guarded import Verdict, shown

# fmt: off
_FRAGMENTS = (
    "a", "B", "the", "Word", "ION", "iPhone", "\u00e9", "\u00df", "\u0130", "\u0131", "\u017f",
    "'s", "'S", "'t", "'re", "'VE", "'ll", "'LL", "'\u017f", "'", "''", "\u2019s", "'sa", "'d1",
    "0", "1", "12", "123", "1234", "12345678", "\u0664\u0662", "\u00b2", "\u2167", "\u00bd",
    "\u0bf0",
    " ", "  ", "   ", " " * 8, " " * 25, "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ",
    "\v\f", "\u00a0", "\u0085", "\u2028", "\u3000", "\u200b", "\u180e", "\ufeff", "\u200d",
    "\u00ad",
    "!", "...", "?!", "//", "/*", "*/", "--", "=>", "()", "[]", "{}", "<|", "|>", "_", "__", "#",
    "\\",
    "<|endoftext|>", "<|im_start|>", "</s>", "<s>", "[INST]", "<|fim_prefix|>", "<0x0A>", "<unk>",
    "\u4e2d\u6587", "\u65e5\u672c\u8a9e\u306e", "\u30ab\u30bf\u30fc", "\ud55c\uad6d",
    "\u1112\u1161\u11ab",
    "\u0440\u0443\u0441", "\u0623\u0644\u0639", "\u05e9\u05dc", "\u0939\u093f\u0928\u094d",
    "\u0e20\u0e32",
    "e\u0301", "\u0301", "o\u0308\u0323", "\u0344", "\u1e9b\u0323", "\u2126", "\u0958", "\ufb01",
    "\u212a",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "\x00", "\x01", "\x1b[0m", "\x7f", "\u0080", "\ufffd", "\ufffe", "\U0001d400", "\U00020000",
    "\ue000",
)
# fmt: on
_WHOLE = (
    "",
    " ",
    "\n",
    "a" * 2_000,
    "ab" * 1_000,
    "aaa " * 500,
    "A" * 300 + "a" * 300,
    "9" * 1_000,
    " " * 3_000,
    "\n" * 1_000,
    " \n" * 500 + "x",
    "\t " * 500 + "x",
    "!" * 1_000,
    "-=" * 500,
    "\u4e2d" * 500,
    "e\u0301" * 500,
    "\u0301" * 100,
    "\U0001f600" * 200,
    "x" + " " * 200 + "y" + " " * 201,
    "if x:\n" + "".join(f"{' ' * n}y = {n}\n" for n in range(60)),
    "I'm you're he's we'll they'd I've don't O'Neill 'quoted' 'Tis rock'n'roll",
    "I'M YOU'RE HE'S WE'LL THEY'D I'VE DON'T",
    "3.14159 1,000,000 0x1F 1e-9 2026-11-22T22:40:00Z 192.168.0.1 +49 30 123456",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\Users\\x\\file.txt",
    '{"key": [1, 2.5, null, true], "text": "line\\nbreak \\u00e9"}',
    "def f(x, *, y=None):\n\treturn x  # comment\r\n\r\n\r\n",
    "$a = b_1 + c2d3 << 4; // \u00fc\u00df\n#include <stdio.h>\n",
    "camelCaseWords and PascalCaseWords and SCREAMING_SNAKE and kebab-case",
)


def naughty_texts(words: Sequence[str] = (), count: int = 20_000) -> Iterator[str]:
    """Give texts: fixed ones, and as many made of fragments and words; always the same.

    `words` are more fragments, such as a tokenizer's added tokens.
    """
    draw = random.Random("naughty")
    fragments = [*_FRAGMENTS, *words]
    yield from _WHOLE
    yield from fragments
    for number in range(count):
        yield "".join(draw.choice(fragments) for _ in range(1 + number % 16))


Progress = Callable[[int, int], None]

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
    codes = [code for code in map(ord, every_character()) if code not in untried]
    texts = [_CONTEXTS.format(chr(code)) + _decomposed(code) for code in codes]
    wrong = _wrong(encoder, tokenizer, texts, progress)
    pairs = zip(codes, wrong, strict=True)
    differing = sorted({one for code, differs in pairs if differs for one in _involved(code)})
    if any(code < 128 for code in differing) or len(differing) > _MOST:
        first = shown("".join(map(chr, differing[:4])))
        return Verdict(refused=f"it does {len(differing):,} characters otherwise, as {first}")
    left = ranges_of(untried.union(differing))
    suspects = CodePointSet(left)
    hard = [t for t in naughty_texts(added_texts(tokenizer)) if not suspects.found_in([t])]
    for text, differs in zip(hard, _wrong(encoder, tokenizer, hard, None), strict=True):
        if differs:
            return Verdict(refused=f"it gives other ids for {shown(text)}")
    return Verdict(left=left)


def _wrong(
    encoder: Encoder, library: Tokenizer, texts: Sequence[str], progress: Progress | None
) -> Iterator[bool]:
    """Whether the encoder gives other ids, by text."""
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        both = zip(_own(encoder, batch), library.encode_texts(batch, False), strict=True)
        yield from (one is not None and not np.array_equal(one, other) for one, other in both)
        if progress:
            progress(first + len(batch), len(texts))


def _own(encoder: Encoder, texts: Sequence[str]) -> Sequence[np.ndarray | None]:
    """Ids; None for a text that the encoder fails on, which the library will encode."""
    try:
        return encoder.encode(texts)
    except CannotEncode:
        return [None] if len(texts) == 1 else [_own(encoder, [text])[0] for text in texts]


def _decomposed(code: int) -> str:
    return unicodedata.normalize("NFD", chr(code))


def _involved(code: int) -> Iterator[int]:
    """A code point, and those that NFC composes it of; accents, which are everywhere, aside."""
    yield code
    for part in map(ord, _decomposed(code)):
        if part >= 128 and part not in _ACCENTS:
            yield part
