"""Numbers and names in sentences for people."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

_UNITS = ("kB", "MB", "GB", "TB")
_NAMED = 3  # reasons


def counted(number: int, what: str) -> str:
    """The number and its noun, in the plural except for one.

    >>> counted(1, "shard"), counted(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def sized(size: float) -> str:
    """A number of bytes, in units of 1,000.

    >>> sized(1), sized(999), sized(2_560), sized(3.21e6), sized(4e16)
    ('1 byte', '999 bytes', '2.6 kB', '3.2 MB', '40,000.0 TB')
    """
    if size < 1_000:
        return counted(round(size), "byte")
    unit = -1
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:,.1f} {_UNITS[unit]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the known one that was meant, if one is near.

    >>> nearest("weigth", ["weight", "seed"]), nearest("x", ["seed"])
    ("; did you mean 'weight'?", '')
    """
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def either(names: Iterable[str]) -> str:
    """Names, one of which is expected.

    >>> either(["a"]), either(["b", "a", "c"])
    ("'a'", "'b', 'a' or 'c'")
    """
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def shortened(text: str, most: int = 120) -> str:
    """A text of at most so many characters, with an ellipsis where it was cut.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def reasons(counts: dict[str, int], noun: str = "reason") -> str:
    """Counts by reason, the most common first, and how many reasons are not named.

    >>> reasons({"not JSON": 2, "no text": 1_000})
    '1,000 no text; 2 not JSON'
    """
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    said = [f"{count:,} {reason}" for reason, count in ordered[:_NAMED]]
    if len(ordered) > _NAMED:
        said.append(counted(len(ordered) - _NAMED, f"other {noun}"))
    return "; ".join(said)


def on_one_line(text: object) -> str:
    r"""A text with its invisible characters written out.

    >>> print(on_one_line("a\n\x1b[31m"))
    a\n\x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def name_of(function: Any) -> str:
    """What people call a function: `module:name`; a `partial` by what it calls.

    >>> name_of(partial(counted, 1))
    'jaxdata.base.wording:counted'
    """
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"
