"""Text from anywhere, made safe for a terminal and measured in its columns."""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len

__all__ = ["excerpt", "fit", "printable"]

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""The text in one line: whatever is no visible character is written as an escape.

    Control characters and escape sequences, marks that turn the direction of writing, and
    characters that stand for nothing cannot reach the terminal.

    >>> print(printable("red: \x1b[31m\n\u202e"))
    red: \x1b[31m\n\u202e
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def excerpt(text: str) -> str:
    r"""A piece of text as it is quoted in a line: printable, runs of spaces as one.

    >>> print(excerpt("  a   table\n  of   numbers"))
    a table\n of numbers
    """
    return re.sub(" {2,}", " ", printable(text)).strip()


def fit(text: str, width: int) -> str:
    """As much of a printable text as `width` columns hold, with an ellipsis where it is cut.

    >>> fit("abcdef", 4), fit("日本語", 5), fit("abc", 3)
    ('abc…', '日本…', 'abc')
    """
    if cell_len(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        size = cell_len(character)
        if used + size > width - 1:
            break
        kept.append(character)
        used += size
    return "".join(kept) + "…"
