"""Windows of token ids: their hashes, and the sample of them that equal spans have in common.

Source: Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document Fingerprinting",
SIGMOD 2003.
"""

from __future__ import annotations

import numpy as np

from jaxdata.hashing.ngrams import Hashes, mixed
from jaxdata.ragged import AnyInts, Ints, expand

_BASES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


def sample_sizes(span: int) -> tuple[int, int]:
    """Tokens `n` of a sampled window, and how many of these, `w`, a span has: n + w - 1 = span.

    >>> sample_sizes(50)
    (26, 25)
    """
    w = max(1, span // 2)
    return span - w + 1, w


def window_hashes(ids: AnyInts, n: int, which: int = 0) -> Hashes:
    """One hash for each run of `n` ids, (ids - n + 1,); `which` of 0 and 1 are independent.

    A polynomial modulo 2^64 in mixed values, made of those of half as many ids.

    >>> a, b, c = window_hashes(np.array([7, 8, 7, 8]), 2).tolist()
    >>> a == c != b
    True
    """
    base = int(_BASES[which])
    found = mixed(ids.astype(np.uint64) + np.uint64(base))
    length = 1
    for bit in bin(n)[3:]:
        found = _joined(found, found, length, length, base)
        length *= 2
        if bit == "1":
            one = mixed(ids.astype(np.uint64) + np.uint64(base))
            found = _joined(found, one, length, 1, base)
            length += 1
    return mixed(found)


def _joined(first: Hashes, second: Hashes, one: int, other: int, base: int) -> Hashes:
    """Hashes of windows of `one` ids, each with those of the `other` ids after it."""
    after = second[one:]
    power = np.uint64(pow(base, other, 2**64))
    return first[: len(after)] * power + after


def window_starts(counts: Ints, n: int) -> Ints:
    """Where windows of `n` tokens begin in documents of `counts` tokens, end to end.

    >>> window_starts(np.array([4, 2, 3]), 3).tolist()
    [0, 1, 6]
    """
    document, place = expand(np.maximum(counts - n + 1, 0))
    starts: Ints = (np.cumsum(counts) - counts)[document] + place
    return starts


def sampled(hashes: Hashes, starts: Ints, w: int) -> Ints:
    """The windows with the smallest of `w` hashes in a row, for each row that begins at `starts`.

    Equal rows have their first smallest hash at the same place, so that spans of n + w - 1 equal
    tokens share a sample, wherever they are. Of random tokens about 2 / (w + 1) are sampled.
    """
    if not len(starts):
        return starts
    rows = np.lib.stride_tricks.sliding_window_view(hashes, w)
    return np.unique(starts + rows.argmin(axis=1)[starts])
