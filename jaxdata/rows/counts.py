"""Totals of rows: exact, from lengths alone."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class TokenCounts:
    """Totals of some rows; in slots (= tokens), except `rows` and documents.

    >>> TokenCounts(rows=2, slots=8, padding=1) - TokenCounts(rows=1, slots=4)
    TokenCounts(rows=1, begun=0, slots=4, trained_tokens=0, overlap_tokens=0, padding=1, finished=0)
    """

    rows: int = 0
    begun: int = 0
    """documents whose first token is in these rows; one that is read twice counts twice"""
    slots: int = 0
    trained_tokens: int = 0
    """targets with loss, stored masks not counted"""
    overlap_tokens: int = 0
    """slots of masked context"""
    padding: int = 0
    finished: int = 0
    """documents whose last token is in these rows"""

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: TokenCounts) -> TokenCounts:
        return self + other * -1

    def __mul__(self, times: int) -> TokenCounts:
        return TokenCounts(*(times * value for value in astuple(self)))
