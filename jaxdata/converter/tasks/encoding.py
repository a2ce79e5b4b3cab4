"""Texts to ids for every task: long texts are encoded in parts, failures are `Unencodable`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.tasks.base import Dropped, Unencodable
from jaxdata.tokenizers import CannotEncode, Tokenizer

_LONG = 200_000  # characters from which a text is encoded in parts, where its tokens stay the same


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    special: bool = False,
    continuing: bool = False,
    long: int = _LONG,
) -> list[NDArray[Any] | Dropped]:
    """Encode texts as `Tokenizer.encode` does; `Unencodable` in the place of those it fails on."""
    try:
        if max(map(len, texts), default=0) <= long:
            return list(tokenizer.encode(texts, special=special, continuing=continuing))
        return _in_parts(tokenizer, texts, special, continuing, long)
    except CannotEncode:
        if len(texts) == 1:
            return [Unencodable()]
    options: dict[str, Any] = {"special": special, "continuing": continuing, "long": long}
    return [encode(tokenizer, [text], **options)[0] for text in texts]


def _in_parts(
    tokenizer: Tokenizer, texts: Sequence[str], special: bool, continuing: bool, long: int
) -> list[NDArray[Any] | Dropped]:
    # Special tokens might lie across a cut: a text that has them is not cut.
    cuts = [[text] if special else tokenizer.cuts(text, long) for text in texts]
    first = tokenizer.encode([parts[0] for parts in cuts], special=special, continuing=continuing)
    rest = iter(tokenizer.encode([part for parts in cuts for part in parts[1:]], continuing=True))
    return [
        np.concatenate([ids, *islice(rest, len(parts) - 1)]) if len(parts) > 1 else ids
        for ids, parts in zip(first, cuts, strict=True)
    ]
