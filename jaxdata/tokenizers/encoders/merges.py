"""The proof that merging by the bytes of a pair is the same as merging by the pair."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from jaxdata.tokenizers.encoders.base import Refused
from jaxdata.tokenizers.encoders.byte_level import ByteLevelBpe


def ranks_of(parts: ByteLevelBpe) -> dict[bytes, int]:
    """The order in which tokens are made: the 256 bytes, then as merges make them first."""
    return {token: rank for rank, token in enumerate(parts.ids)}


def check_merges(parts: ByteLevelBpe) -> None:
    r"""Raise Refused unless every token, merged alone, ends in one of `merges`.

    The library merges the pairs that are listed; an encoder by ranks merges any pair that together
    is a token. They make the same of every text if each token, merged alone by tokens of lower
    rank, becomes two parts that are a listed pair. For up to some rank both have made the same of a
    text. A pair that together is the token of the next rank then is what that token becomes
    alone, as no merge crossed its ends before: the listed pair, which both merge. A token of lower
    rank is not left unmade, for the same reason. So both make the same up to the next rank.
    """
    ranks, listed = ranks_of(parts), {*parts.merges}
    _check_order(parts, ranks)
    for token, rank in ranks.items():
        if len(token) > 1:
            found = merged_below(token, ranks, rank)
            if len(found) != 2 or (found[0], found[1]) not in listed:
                raise Refused(f"its merges do not make the token {token!r} of two earlier ones")


def _check_order(parts: ByteLevelBpe, ranks: Mapping[bytes, int]) -> None:
    last = 0
    for left, right in parts.merges:
        rank = ranks[left + right]
        if rank < last:
            raise Refused(f"the merges that make {left + right!r} lie apart")
        last = rank
        if left not in ranks or right not in ranks:
            raise Refused(f"a merge takes {left!r} and {right!r}, one of which is no token")


def merged_below(token: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """What the bytes of a token become by merging the lowest rank first, below a limit.

    >>> merged_below(b"abc", {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"abc": 4}, limit=4)
    [b'ab', b'c']
    """
    found = [token[n : n + 1] for n in range(len(token))]
    while len(found) > 1:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(found)]
        least = min(pairs)
        if least >= limit:
            break
        at = pairs.index(least)
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found
