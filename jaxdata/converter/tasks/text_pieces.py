"""Cutting a text into pieces, each of which is encoded to at most so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import ceil

from jaxdata.converter.tasks.base import Dropped, Encoded

_FILLED = 15 / 16  # what pieces aim at: some parts of a text have more tokens than others
_NEAR = 1 / 8  # of a piece: how far before its end a line's end is looked for

Encode = Callable[[Sequence[str], Sequence[bool]], Sequence[Encoded | Dropped]]
"""Encodes texts; each with whether it continues another."""


def fitting_pieces(
    text: str, tokens: int, room: int, encode: Encode, *, continues: bool = False
) -> Iterator[Encoded | Dropped]:
    """Encode a text in pieces of at most `room` tokens; a single character may have more.

    Args:
        text: at least one character.
        tokens: how many `encode` makes of the whole; more than `room`.
        room: tokens of a piece.
        encode: what encodes pieces. `Dropped` is given on.
        continues: whether the text itself continues another.
    """
    parts = divide(text, max(2, ceil(tokens / (_FILLED * room))))
    later = [continues or number > 0 for number in range(len(parts))]
    for part, goes_on, one in zip(parts, later, encode(parts, later), strict=True):
        if isinstance(one, Dropped) or len(one.tokens) <= room or len(part) == 1:
            yield one
        else:
            yield from fitting_pieces(part, len(one.tokens), room, encode, continues=goes_on)


def divide(text: str, count: int) -> list[str]:
    r"""Cut a text into parts of about the same size, after the end of a line where one is near.

    >>> divide("one two three\nfour five six\n", 2), divide("one", 9)
    (['one two three\n', 'four five six\n'], ['o', 'n', 'e'])
    """
    count = min(count, len(text))
    near = int(_NEAR * len(text) / count)
    evenly = [len(text) * number // count for number in range(1, count)]
    edges = [text.rfind("\n", at - near, at) + 1 or at for at in evenly]
    return [text[start:stop] for start, stop in pairwise([0, *edges, len(text)])]
