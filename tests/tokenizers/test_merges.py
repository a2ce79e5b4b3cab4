"""Merges of pairs against merges by rank, one pair at a time, and splits one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.tokenizers.encoders.base import Refused
from jaxdata.tokenizers.encoders.merges import check_merges, merged_below, ranks_of
from jaxdata.tokenizers.encoders.sequences import DEEPSEEK, SEQUENCES, SINGLE_DIGITS
from jaxdata.tokenizers.text_cuts import GPT2_SPLIT

Merge = tuple[bytes, bytes]


def by_rank(token: bytes, order: list[bytes], limit: int) -> list[bytes]:
    """Merge the first of the lowest pairs as long as there is one below the limit."""
    parts = [bytes([byte]) for byte in token]
    while True:
        ranked = [
            (order.index(parts[at] + parts[at + 1]), at)
            for at in range(len(parts) - 1)
            if parts[at] + parts[at + 1] in order[:limit]
        ]
        if not ranked:
            return parts
        _, at = min(ranked)
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[bytes], list[Merge]]:
    """Tokens in the order of their ranks, and merges that make them; seldom in another order."""
    order = [b"a", b"b", b"c"]
    merges = []
    for _ in range(draw(st.integers(0, 6))):
        pair = draw(st.sampled_from(order)), draw(st.sampled_from(order))
        merges.append(pair)
        if pair[0] + pair[1] not in order:
            order.append(pair[0] + pair[1])
    if draw(st.integers(0, 3)) == 0:
        merges = draw(st.permutations(merges))
    return order, merges


def refusal(order: list[bytes], merges: list[Merge]) -> str | None:
    last = 0
    for left, right in merges:
        rank = order.index(left + right)
        if rank < last:
            return f"the merges that make {left + right!r} lie apart"
        last = rank
    for rank, token in enumerate(order):
        parts = by_rank(token, order, rank)
        if len(token) > 1 and (len(parts) != 2 or (parts[0], parts[1]) not in merges):
            return f"its merges do not make the token {token!r} of two earlier ones"
    return None


def refused(order: list[bytes], merges: list[Merge]) -> str | None:
    ids = {token: 7 * number for number, token in enumerate(order)}
    parts: Any = SimpleNamespace(ids=ids, merges=merges)
    assert ranks_of(parts) == {token: number for number, token in enumerate(order)}
    try:
        check_merges(parts)
    except Refused as error:
        return str(error)
    return None


@given(vocabularies())
@settings(max_examples=100)
def test_merges_are_taken_where_each_token_is_made_of_two_earlier_ones(
    given: tuple[list[bytes], list[Merge]],
) -> None:
    assert refused(*given) == refusal(*given)


def test_reasons_name_the_token() -> None:
    order = [b"a", b"b", b"ab", b"aab", b"aa"]
    says = "its merges do not make the token b'aab' of two earlier ones"
    assert refused(order, [(b"a", b"b"), (b"aa", b"b"), (b"a", b"a")]) == says
    assert refused(order, [(b"a", b"b"), (b"a", b"ab"), (b"a", b"a")]) is None
    lacks = [b"a", b"b", b"abc"]
    says = "a merge takes b'ab' and b'c', one of which is no token"
    assert refused(lacks, [(b"ab", b"c")]) == says
    says = "a merge takes b'a' and b'bc', one of which is no token"
    assert refused(lacks, [(b"a", b"bc")]) == says


@given(vocabularies(), st.binary(max_size=9).map(lambda b: bytes(b"abc"[one % 3] for one in b)))
def test_bytes_are_merged_lowest_first_below_a_limit(
    given: tuple[list[bytes], list[Merge]], text: bytes
) -> None:
    order, _ = given
    ranks = {token: number for number, token in enumerate(order)}
    for limit in range(len(order) + 1):
        assert merged_below(text, ranks, limit) == by_rank(text, order, limit)


FRAGMENTS = [
    "a",
    "Bc",
    "é",
    "\u0301",
    "1",
    "234",
    "\u0664",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    ".",
    "!?",
]
FRAGMENTS += ["中", "の。", "ー", "'s", "_", "\x01", "\x02\x03", "$", "\u00a0", "\u200d", "́中", "٣"]


def one_after_the_other(text: str, *splits: str) -> list[str]:
    """What each split matches of the pieces before it, and what is between."""
    pieces = [text]
    for split in splits:
        found = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(split, piece):
                found += [piece[at : match.start()], match.group()]
                at = match.end()
            found.append(piece[at:])
        pieces = [piece for piece in found if piece]
    return pieces


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join))
@settings(max_examples=150)
def test_one_expression_gives_the_pieces_of_several(text: str) -> None:
    found = [match.group() for match in regex.finditer(SINGLE_DIGITS, text)]
    assert found == one_after_the_other(text, r"\p{N}", GPT2_SPLIT)
    assert [*SEQUENCES] == [DEEPSEEK]
    one = regex.compile(SEQUENCES[DEEPSEEK], regex.V1)
    found = [match.group() for match in one.finditer(text)]
    assert found == one_after_the_other(text, *DEEPSEEK)
