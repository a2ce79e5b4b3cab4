"""A few documents of each source as text, with their origin; only their beginnings are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents
from jaxdata.documents.kept import in_source
from jaxdata.look.origins import origin_of
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.traced import origin_line

Decode = Callable[[Any], str]
FAR_SAMPLES = 3
"""documents of a source in a bucket, where each is a request or two"""
_TOKENS = 700
_CHARACTERS = 2_500


@dataclass(frozen=True)
class Sample:
    """The beginning of a document."""

    source: str
    document: int
    """its number in the source, through whatever view it is read"""
    first: int
    """the token of that document at which this begins: 0 unless a view cuts it"""
    length: int
    """tokens, with EOD"""
    origin: str
    """its input file and line; empty if unknown"""
    kept: dict[str, str]
    text: str | None
    """printable; None if no tokenizer is known"""
    cut: bool
    """whether the document goes on"""


def sample_documents(
    name: str, documents: Documents, decode: Decode | None, count: int
) -> list[Sample]:
    """Documents spread evenly over a source."""
    return [_sample(name, documents, decode, number) for number in spread(len(documents), count)]


def spread(total: int, count: int) -> list[int]:
    """At most `count` numbers below `total`, evenly spread.

    >>> spread(10, 3), spread(2, 5), spread(0, 5)
    ([1, 5, 8], [0, 1], [])
    """
    if total <= count:
        return list(range(total))
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def beginning(documents: Documents, document: int, tokens: int) -> NDArray[Any]:
    """The first tokens of a document; nothing else of it is read."""
    count = min(tokens, int(documents.lengths[document]))
    one = (np.array([value]) for value in (document, 0, count))
    data = bytes(documents.tokens(*one).views.join())
    return np.frombuffer(data, documents.dtype.newbyteorder("<"))


def _sample(name: str, documents: Documents, decode: Decode | None, document: int) -> Sample:
    length = int(documents.lengths[document])
    text = None if decode is None else decode(beginning(documents, document, _TOKENS))
    origin = origin_of(documents, document)
    _, number, first = in_source(documents, document)
    return Sample(
        source=name,
        document=number,
        first=first,
        length=length,
        origin=came_from(vars(origin)),
        kept={printable(key): printable(str(kept)[:200]) for key, kept in origin.kept.items()},
        text=None if text is None else printable_lines(text[:_CHARACTERS]),
        cut=length > _TOKENS or len(text or "") > _CHARACTERS,
    )


def came_from(origin: dict[str, Any]) -> str:
    """`a.jsonl line 17`; empty if unknown."""
    return origin_line(origin).removeprefix(", from ")
