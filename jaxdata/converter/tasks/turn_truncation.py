"""Shortening prompts and answers so that a document fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.tasks.base import Dropped
from jaxdata.converter.tasks.spans import Span

Keep = Literal["keep_end", "keep_start"]


@dataclass(frozen=True)
class Truncation:
    """Shortens the longest prompts first, then the longest answers, at their end.

    Attributes:
        tokens: of a document, at most.
        prompts: which end of a shortened prompt stays.
        least: tokens that stay of each turn; shorter ones stay whole.
    """

    tokens: int
    prompts: Keep
    least: int

    def __call__(
        self, spans: Sequence[Span], parts: Sequence[NDArray[Any]]
    ) -> list[NDArray[Any]] | Dropped:
        """The ids of a document's spans, shortened; `Dropped` if that is not enough."""
        excess, shorter = sum(map(len, parts)) - self.tokens, list(parts)
        for turn in ("prompt", "answer"):
            for places in self._longest_first(turn, spans, parts):
                ids = np.concatenate([parts[place] for place in places])
                cut = min(max(0, excess), max(0, len(ids) - self.least))
                at_start = turn == "prompt" and self.prompts == "keep_end"
                kept = ids[cut:] if at_start else ids[: len(ids) - cut]
                # A turn has the same loss all through, so one of its spans can hold it.
                for place in places:
                    shorter[place] = kept if place == places[0] else kept[:0]
                excess -= cut
        return Dropped(f"cannot be shortened to {self.tokens:,} tokens") if excess > 0 else shorter

    def _longest_first(
        self, turn: str, spans: Sequence[Span], parts: Sequence[NDArray[Any]]
    ) -> list[list[int]]:
        """The places of the spans of each turn of a kind."""
        runs = groupby(range(len(spans)), lambda place: spans[place].turn)
        turns = [list(places) for kind, places in runs if kind == turn]
        return sorted(turns, key=lambda places: -sum(len(parts[place]) for place in places))
