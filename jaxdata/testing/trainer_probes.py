"""Rows made to be asked about: batches that a trainer has to treat in one known way.

The shapes, ids and other arrays are those of a loader's first batch; where documents begin and end,
which slots have loss, and what is changed is chosen here, so that one loss tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.table import Batch

Slots = NDArray[np.bool_]
_LEAST_SLOTS = 8


@dataclass(frozen=True)
class Row:
    """One row of tokens.

    `tokens[j]` is the input of slot *j*, `targets[j]` its target; a segment's last target is a
    token of its own, as the end of a document is.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    segments: NDArray[np.int32]
    mask: Slots

    @property
    def filled(self) -> Slots:
        return self.segments > 0

    def of(self, segment: int) -> Slots:
        """The slots of a segment."""
        return np.asarray(self.segments == segment)

    def with_loss(self, slots: Slots) -> Row:
        """The same row with loss in these slots only."""
        return replace(self, mask=np.asarray(slots & self.filled))

    def alone(self, segment: int, at_start: bool) -> Row:
        """A segment in a row of its own, in its first slots or where it is; the rest is padding."""
        slots = np.flatnonzero(self.of(segment))
        there = slots - slots[0] if at_start else slots
        made = empty_row(len(self.tokens))
        for name in ("tokens", "targets", "mask"):
            getattr(made, name)[there] = getattr(self, name)[slots]
        made.segments[there] = 1
        return made


def empty_row(seq_len: int) -> Row:
    """A row of padding."""
    tokens, targets, segments = np.zeros((3, seq_len), np.int32)
    return Row(tokens, targets, segments, np.zeros(seq_len, bool))


class Probes:
    """Makes rows and batches like those of a loader.

    Args:
        sample: a batch of the loader's, in jaxdata's own layout.
    """

    def __init__(self, sample: Batch) -> None:
        wanted = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}
        if wanted - sample.keys():
            raise InputError(
                f"these rows have {', '.join(sorted(sample))}: expected packed rows, with "
                f"{', '.join(sorted(wanted))}"
            )
        self._sample = sample
        self.rows, self.seq_len = sample["inputs"].shape
        if self.seq_len < _LEAST_SLOTS:
            raise InputError(f"seq_len={self.seq_len}: expected at least {_LEAST_SLOTS} to check")
        self.restart = _restarts(sample)
        self._ids = _ids(sample)
        self._random = np.random.default_rng(0)

    def row(self, *, full: bool) -> Row:
        """Three segments; without `full` the last of them is padding. Some slots have no loss."""
        third, slots = self.seq_len // 3, self.seq_len
        made = empty_row(slots)
        made.segments[:] = np.repeat([1, 2, 3 * full], [third, third, slots - 2 * third])
        made.tokens[:] = self._random.choice(self._ids, slots)
        made.targets[:-1] = made.tokens[1:]
        ends = np.append(np.diff(made.segments) != 0, True)
        made.targets[ends] = self._random.choice(self._ids, int(ends.sum()))
        made.mask[:] = self._random.random(slots) < 0.8
        made.mask[np.flatnonzero(ends)] = True
        for array in (made.tokens, made.targets, made.mask):
            array[~made.filled] = 0
        return made

    def changed(self, row: Row, slots: Slots) -> Row:
        """Other tokens in some slots, as inputs, and as targets of the slots before them."""
        tokens = np.where(slots, self.others(row.tokens), row.tokens)
        follows = np.append(row.segments[1:] == row.segments[:-1], False) & row.filled
        targets = np.where(follows, np.append(tokens[1:], 0), row.targets)
        return replace(row, tokens=tokens.astype(np.int32), targets=targets.astype(np.int32))

    def others(self, tokens: NDArray[Any]) -> NDArray[np.int32]:
        """For each token another one of the loader's."""
        place = np.searchsorted(self._ids, tokens) % len(self._ids)
        return np.asarray(self._ids[(place + 1) % len(self._ids)], np.int32)

    def batch(self, rows: list[Row], *, fill: bool = True) -> Batch:
        """A batch of these rows: again and again, or completed with padding."""
        padded = [*rows, *[empty_row(self.seq_len)] * (self.rows - len(rows))]
        chosen = [rows[k % len(rows)] for k in range(self.rows)] if fill else padded
        segments = np.stack([row.segments for row in chosen])
        found = {name: np.zeros_like(array) for name, array in self._sample.items()}
        return {
            **found,
            "inputs": np.stack([row.tokens for row in chosen]),
            "targets": np.stack([row.targets for row in chosen]),
            "segment_ids": segments,
            "positions": self._positions(segments),
            "loss_mask": np.stack([row.mask for row in chosen]),
        }

    def _positions(self, segments: NDArray[np.int32]) -> NDArray[np.int32]:
        slots = np.broadcast_to(np.arange(self.seq_len), segments.shape)
        begins = np.zeros_like(slots)
        if self.restart:
            first = np.diff(segments, axis=1, prepend=-1) != 0
            begins = np.maximum.accumulate(np.where(first, slots, 0), axis=1)
        return np.where(segments > 0, slots - begins, 0).astype(np.int32)


def _restarts(sample: Batch) -> bool:
    """Whether positions begin again with each segment."""
    begins = np.diff(sample["segment_ids"], axis=1) > 0
    return not sample["positions"][:, 1:][begins].any()


def _ids(sample: Batch) -> NDArray[np.int32]:
    """The tokens of a batch, without those that end documents."""
    segments, filled = sample["segment_ids"], sample["segment_ids"] > 0
    ends = np.diff(segments, axis=1, append=-1) != 0
    found = np.setdiff1d(sample["inputs"][filled], sample["targets"][ends & filled])
    found = found if len(found) > 1 else np.unique(sample["inputs"][filled])
    if len(found) < 2:
        raise InputError("the first batch has fewer than 2 different tokens: nothing to change")
    return found.astype(np.int32)
