"""How large a template's operation would make its result, known before it is done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

LONGEST = 2**22  # characters
MOST_ITEMS = 2**18
TOO_LARGE = "it makes something too large"
_ITEM = 16  # characters that an item of a container counts for
_WIDEST = 10_000  # of what is padded, indented, cut in batches
_MOST_BITS = 4_096
_WIDE = re.compile(r"\d{5}|%[^%a-zA-Z]*\*|\{[^{}]*\{")  # a width may be of another field
_NUMBER = re.compile(r"\d+")
_TAKES_NUMBERS = {"abs", "default", "d", "float", "int", "round", "string", "tojson", "join"}
_TAKES_NUMBERS |= {"list", "format", "format_map"}
_CUTS = {
    "list",
    "batch",
    "slice",
    "sort",
    "unique",
    "map",
    "select",
    "reject",
    "title",
    "splitlines",
}
_CUTS |= {"reverse", "groupby", "sum", "min", "max"}
"""what makes an item of every character"""
_PLAIN = (str, int, float, list, tuple, Mapping, Undefined, type(None), range)


class Weights:
    """How long values would be, written: a part counts as often as it is in there.

    A list of two lists of two lists … is small, and to write or compare it would have no end.
    Nothing that was weighed may change.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, value: Any) -> int:
        """About the number of characters; at most linear in the parts that are not shared."""
        if isinstance(value, str):
            return len(value)
        known = self._known.get(id(value))
        if known is None:
            parts = _parts(value)
            known = value, _ITEM + sum(_ITEM + self._of_part(part) for part in parts)
            if parts:
                self._known[id(value)] = known
        return known[1]

    def _of_part(self, part: Any) -> int:
        if not isinstance(part, _PLAIN):  # a namespace, say, may change
            raise SecurityError(f"it compares or writes a {type(part).__name__} in something else")
        return self.of(part)


def check_size(size: int) -> None:
    """Raise SecurityError for more characters than anything may have."""
    if size > LONGEST:
        raise SecurityError(TOO_LARGE)


def check_result(value: Any) -> None:
    """Raise SecurityError for a value that is too large, or that no template needs."""
    if isinstance(value, str):
        check_size(len(value))
    elif isinstance(value, list | tuple | dict):
        check_size(LONGEST * (len(value) > MOST_ITEMS) * 2)
    elif isinstance(value, int):
        check_size(LONGEST * (value.bit_length() > _MOST_BITS) * 2)
    elif isinstance(value, bytes | bytearray | memoryview):
        raise SecurityError("it makes bytes of a text")


def check_json(value: Any, *layout: Any) -> None:
    """Raise SecurityError where the JSON of a value would be too large.

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
        check_size(size)
        inside += [(part, depth + 1) for part in parts]


def _parts(value: Any) -> Sequence[Any]:
    """What a container holds, keys included."""
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    if isinstance(value, AbstractSet | ValuesView):  # the views of dicts
        return list(value)
    return value if isinstance(value, list | tuple) else ()


def check_operation(operator: str, left: Any, right: Any, weights: Weights) -> None:
    """Raise SecurityError where `left operator right` would be too large."""
    if operator == "%" and isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else (right,), weights)
        return
    size, bits = _size_after(operator, left, right), _bits(operator, left, right)
    check_size(LONGEST * 2 if bits > _MOST_BITS else size)
    items = isinstance(left, list | tuple) or isinstance(right, list | tuple)
    check_size(LONGEST * 2 if items and size > MOST_ITEMS else size)


def check_use(name: str, values: Sequence[Any], weights: Weights) -> None:
    """Raise SecurityError where a filter or method would make much of what it is given."""
    widths = [abs(value) for value in values if isinstance(value, int)]
    if max(widths, default=0) > _WIDEST and name not in _TAKES_NUMBERS:
        raise SecurityError(f"{name} of more than {_WIDEST:,}")
    if check := _CHECKS.get(name):
        check(values, weights)
    if name in _CUTS and values and isinstance(values[0], str) and len(values[0]) > MOST_ITEMS:
        raise SecurityError(TOO_LARGE)


def _check_format(text: str, values: Iterable[Any], weights: Weights) -> None:
    """Every field may be that of the longest value, as wide as any width."""
    if _WIDE.search(text):
        raise SecurityError("format with a width of more than 9,999")
    if not all(isinstance(value, _PLAIN) for value in values):
        raise SecurityError("format of what is neither text nor number, list nor mapping")
    width = max(map(int, _NUMBER.findall(text)), default=0)
    longest = max(map(weights.of, values), default=0)
    check_size(len(text) + max(text.count("%"), text.count("{")) * max(width, longest))


def _check_formatted(values: Sequence[Any], weights: Weights) -> None:
    _check_format(_text(values[0], weights), values[1:], weights)


def _check_replace(values: Sequence[Any], weights: Weights) -> None:
    text, old, new = (_text(value, weights) for value in values[:3])
    check_size(len(text) + text.count(old) * len(new))


def _check_join(values: Sequence[Any], weights: Weights) -> None:
    """Of a text and the items that it goes between."""
    between, items = values[0], values[-1]
    sizes = sum(map(weights.of, items))
    check_size(sizes + len(items) * len(between))


def _check_lines(values: Sequence[Any], weights: Weights) -> None:
    text, *widths = values
    wide = [len(width) if isinstance(width, str) else width for width in widths]
    lines = len(_text(text, weights).splitlines()) + 1
    check_size(lines * max(map(int, wide), default=4))


def _check_tabs(values: Sequence[Any], _weights: Weights) -> None:
    check_size(len(values[0]) + values[0].count("\t") * max(map(int, values[1:]), default=8))


def _check_split(values: Sequence[Any], _weights: Weights) -> None:
    text, *by = values
    parts = text.count(by[0]) if by and isinstance(by[0], str) and by[0] else len(text) // 2
    check_size(LONGEST * 2 if parts > MOST_ITEMS else 0)


def _check_round(values: Sequence[Any], _weights: Weights) -> None:
    if any(isinstance(value, int) and abs(value) > 100 for value in values[1:]):
        raise SecurityError("round to more than 100 digits")


def _check_sum(values: Sequence[Any], _weights: Weights) -> None:
    if any(isinstance(value, list | tuple) for value in values[1:]):
        raise SecurityError("sum of lists")


def _refuse(_values: Sequence[Any], _weights: Weights) -> None:
    raise SecurityError("it translates characters")


_CHECKS = {
    **{"format": _check_formatted, "format_map": _check_formatted, "replace": _check_replace},
    **{"join": _check_join, "indent": _check_lines, "expandtabs": _check_tabs},
    **{"split": _check_split, "rsplit": _check_split, "round": _check_round, "sum": _check_sum},
    **{"translate": _refuse, "maketrans": _refuse},
}


def _text(value: Any, weights: Weights) -> str:
    check_size(weights.of(value))
    return str(value)


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
