"""How large a template's operation would make its result, known before it is done."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import SecurityError

LONGEST = 2**22  # characters or items
TOO_LARGE = "it makes something too large"
_ITEM = 16  # characters that an item of a container counts for
_WIDEST = 10_000  # of what is padded, indented, cut in batches
_MOST_BITS = 4_096
_WIDE_FORMAT = re.compile(r"\d{5}|%[^%a-zA-Z]*\*")
_TAKES_NUMBERS = (
    "abs",
    "default",
    "d",
    "float",
    "int",
    "round",
    "string",
    "tojson",
    "join",
    "list",
)


def check_written(value: Any, *layout: Any) -> None:
    """Raise SecurityError where the JSON of a value would be too large.

    A list of two lists of two lists … is small, and written it would have no end: each part counts
    as often as it is in there.

    Args:
        value: what is written.
        layout: the indent of each level, and separators: characters, or their number.
    """
    around = [one if isinstance(one, int) else len(str(one)) for one in layout if one is not None]
    size, inside = 0, [(value, 1)]
    while inside:
        one, depth = inside.pop()
        parts = _parts(one)
        size += len(one) if isinstance(one, str) else len(parts) * (_ITEM + sum(around) * depth)
        if size > LONGEST:
            raise SecurityError(TOO_LARGE)
        inside += [(part, depth + 1) for part in parts]


def _parts(value: Any) -> Sequence[Any]:
    """What a container holds, keys included."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple) else ()


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise SecurityError where `left operator right` would be too large."""
    if operator == "%" and isinstance(left, str):
        check_use("format", (left,))
    elif _size_after(operator, left, right) > LONGEST or _bits(operator, left, right) > _MOST_BITS:
        raise SecurityError(TOO_LARGE)


def check_use(name: str, values: Sequence[Any]) -> None:
    """Raise SecurityError where a filter or method would make much of what it is given."""
    widths = [abs(value) for value in values if isinstance(value, int)]
    if max(widths, default=0) > _WIDEST and name not in _TAKES_NUMBERS:
        raise SecurityError(f"{name} of more than {_WIDEST:,}")
    texts = [value for value in values if isinstance(value, str)]
    if name == "format" and texts and _WIDE_FORMAT.search(texts[0]):
        raise SecurityError("format with a width of more than 9,999")
    if name == "replace" and len(texts) == 3:
        text, old, new = texts
        if text.count(old) * len(new) > LONGEST:
            raise SecurityError(TOO_LARGE)
    if name == "join":
        items = [len(value) for value in values if isinstance(value, list | tuple)]
        if max(items, default=0) * max(map(len, texts), default=0) > LONGEST:
            raise SecurityError(TOO_LARGE)


def _size_after(operator: str, left: Any, right: Any) -> int:
    """Characters or items of the result; 0 where it has none."""
    sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    counts = [value for value in (left, right) if isinstance(value, int)]
    if operator == "+":
        return sum(sizes)
    return sizes[0] * counts[0] if operator == "*" and sizes and counts else 0


def _bits(operator: str, left: Any, right: Any) -> int:
    """Bits of the result of a multiplication or power of whole numbers, at most; else 0."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return 0
    if operator == "**":
        return left.bit_length() * max(right, 1)
    return left.bit_length() + right.bit_length() if operator == "*" else 0
