"""Megatron's order once more: a slow implementation that walks, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st


class SlowGpt:
    """Megatron's GPT dataset as its documentation of indices says it, one token after the other."""

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        seq_len: int,
        seed: int,
        num_samples: int | None,
        chosen: Sequence[int] | None = None,
        extra: int = 1,
        drop_last: bool = True,
    ) -> None:
        self.documents, self.seq_len, self.extra = documents, seq_len, extra
        ids = list(range(len(documents))) if chosen is None else list(chosen)
        tokens = sum(len(documents[one]) for one in ids)
        epochs = 1
        while num_samples is not None and epochs * tokens < num_samples * seq_len + extra:
            epochs += 1
        self.length = (epochs * tokens - extra) // seq_len
        if not drop_last:
            self.length = math.ceil((epochs * tokens - extra) / seq_len)
        separate, before = False, 0
        if epochs > 1 and num_samples is not None:
            before = ((epochs - 1) * tokens - extra) // seq_len
            separate = num_samples - before < int(0.80 * ((tokens - extra) // seq_len))
        random = np.random.RandomState(seed)
        self.order = self._documents(ids, epochs, separate, random)
        self.samples = self._walk()
        cut = before if separate else self.length
        self.shuffle = []
        for part in (range(cut), range(cut, self.length)) if separate else (range(cut),):
            shuffled = np.array(part, np.uint32)
            random.shuffle(shuffled)
            self.shuffle += shuffled.tolist()

    @staticmethod
    def _documents(ids: list[int], epochs: int, separate: bool, random: Any) -> list[int]:
        if separate:
            first = SlowGpt._documents(ids, epochs - 1, False, random)
            return first + SlowGpt._documents(ids, 1, False, random)
        shuffled = np.array(ids * epochs, np.int32)
        random.shuffle(shuffled)
        return shuffled.tolist()  # type: ignore[no-any-return]

    def _walk(self) -> list[tuple[int, int]]:
        place, offset, found = 0, 0, [(0, 0)]
        while len(found) <= self.length:
            remaining = self.seq_len + self.extra
            while remaining:
                left = len(self.documents[self.order[place]]) - offset
                remaining -= left
                if remaining <= 0:
                    offset += remaining + left - self.extra
                    remaining = 0
                elif place == len(self.order) - 1:
                    offset += left - self.extra
                    remaining = 0
                else:
                    place, offset = place + 1, 0
            found.append((place, offset))
        return found

    def text(self, row: int) -> np.ndarray:
        (first, begin), (last, end) = self.samples[self.shuffle[row] :][:2]
        if first == last:
            return self.documents[self.order[first]][begin : end + self.extra]
        parts = [self.documents[self.order[first]][begin:]]
        parts += [self.documents[self.order[place]] for place in range(first + 1, last)]
        return np.concatenate([*parts, self.documents[self.order[last]][: end + self.extra]])


def texts(rows: Any) -> list[list[int]]:
    """Inputs of every row with its last target; and each target is the input after it."""
    found = []
    for k in range(len(rows)):
        row = rows[k]
        assert (row["targets"][:-1] == row["inputs"][1:]).all()
        found.append([*row["inputs"].tolist(), int(row["targets"][-1])])
    return found


lengths_of_some = st.lists(st.integers(0, 20), min_size=1, max_size=15).filter(sum)


def slow_blend(weights: Sequence[float], size: int) -> list[tuple[int, int]]:
    counts, found = [0] * len(weights), []
    for step in range(size):
        errors = [w * max(float(step), 1.0) - c for w, c in zip(weights, counts, strict=True)]
        taken = errors.index(max(errors))
        found.append((taken, counts[taken]))
        counts[taken] += 1
    return found
