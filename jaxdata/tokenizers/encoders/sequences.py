r"""Several splits, one after the other, as the one regular expression that gives the same pieces.

A later split sees the pieces of an earlier one as texts of their own. One expression does the same
if none of its alternatives matches across a border of pieces, and its look-aheads take a border
for the end of the text. What no split matches stays together, between what is matched; encoders
drop it, so an expression must match it too. Code points that Unicode tables lack never come here.
"""

from __future__ import annotations

from jaxdata.tokenizers.text_cuts import GPT2_SPLIT

SINGLE_DIGITS = GPT2_SPLIT.replace(r" ?\p{N}+", r"\p{N}").replace(r"(?!\S)", r"(?![^\s\p{N}])")
"""Single digits, then GPT-2's rule (SmolLM, StarCoder).

Pieces are digits, and stretches without any. Only the digit's own alternative matches a digit, and
behind a stretch is the end of the text or a digit.
"""

_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+".replace(r"\"", '"')
DEEPSEEK = (
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    _ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The splits of DeepSeek V3."""

_LETTERS, _SIGNS = (rf"[[\p{{{a}}}\p{{{b}}}]--[{_CJK}]]" for a, b in ("LM", "PS"))
_OTHER = rf"[^\s\p{{N}}\p{{L}}\p{{M}}\p{{P}}\p{{S}}{_CJK}]"
_DEEPSEEK_AS_ONE = "|".join(
    [
        # Digits: the third rule matches none, so they stay as the first one left them.
        r"\p{N}{1,3}",
        # Chinese and Japanese: letters, accents, signs and punctuation. In front of letters the
        # third rule takes what is none of these, of which only accents are here: letters to it.
        rf"[[{_CJK}]&&[\p{{L}}\p{{M}}]]+",
        rf"[[{_CJK}]&&[\p{{P}}\p{{S}}]]+",
        # Neither: the third rule, of characters that are neither.
        _ASCII,
        rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?{_LETTERS}+",
        rf" ?{_SIGNS}+[\r\n]*",
        r"\s*[\r\n]+",
        rf"\s+(?![^\s\p{{N}}{_CJK}])",
        r"\s+",
        # What is left: control characters, up to one that the letters behind it take.
        rf"(?:{_OTHER}(?!{_LETTERS}))+",
    ]
)
SEQUENCES: dict[tuple[str, ...], str] = {DEEPSEEK: _DEEPSEEK_AS_ONE}
"""Splits that isolate what they match, and what they are together."""
