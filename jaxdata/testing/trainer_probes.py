"""Rows made to be asked about: batches that a trainer has to treat in one known way.

The shapes, ids and other arrays are those of a loader's first batch; where documents begin and end,
which slots have loss, and what is changed is chosen here, so that one loss tells. `Asked` is a
trainer that is asked for such losses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import Floats
from jaxdata.dataset.manifest import TARGET
from jaxdata.feed.loader import BatchIterator
from jaxdata.rows.table import Batch

Slots = NDArray[np.bool_]
LossOfBatch = Callable[[Any], Any]
_LEAST_SLOTS = 8
_EXACTLY = 1e-6
"""relative: what nothing but rounding may move"""
OTHERS = 7
"""targets beside the one whose share of a mean is measured"""
SHARE = 0.3
"""relative: how far a measured share may be from the expected one; wrong means are further off"""


@dataclass(frozen=True)
class Row:
    """One row of tokens.

    `tokens[j]` is the input of slot *j*, `targets[j]` its target; a segment's last target ends its
    document.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    segments: NDArray[np.int32]
    mask: Slots
    weights: Floats
    """of its targets, where the loader has such an array; 1 unless a check changes them"""

    @property
    def filled(self) -> Slots:
        return self.segments > 0

    def of(self, segment: int) -> Slots:
        """The slots of a segment."""
        return np.asarray(self.segments == segment)

    def with_loss(self, slots: Slots) -> "Row":
        """The same row with loss in these slots only."""
        return replace(self, mask=np.asarray(slots & self.filled))

    def at(self, slot: int) -> Slots:
        """One slot."""
        return np.asarray(np.arange(len(self.tokens)) == slot)

    def with_target(self, slot: int, target: int) -> "Row":
        """The same row with another target in a slot."""
        targets = np.where(self.at(slot), target, self.targets)
        return replace(self, targets=targets.astype(np.int32))

    def alone(self, segment: int, at_start: bool) -> "Row":
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
    return Row(tokens, targets, segments, np.zeros(seq_len, bool), np.ones(seq_len))


def weighs_targets(name: str) -> bool:
    """Whether an array of a batch is what the losses of targets are multiplied by."""
    return name.startswith(TARGET) and "weight" in name


class NotTold(Exception):
    """Why a check of this trainer tells nothing."""


_FLAT = (
    "all targets have the same loss, as where the output layer begins at zero: check again with "
    "other weights there, or after a step of training"
)


class Asked:
    """A trainer that is asked for losses of batches of rows like those of a loader.

    Args:
        loss_of_batch: as `check_trainer` takes it.
        loader: whose first batch the rows are like.
        tolerance: how far equal losses may differ.
    """

    def __init__(self, loss_of_batch: LossOfBatch, loader: BatchIterator, tolerance: float) -> None:
        self._loss_of_batch, self.loader, self.tolerance = loss_of_batch, loader, tolerance
        sample = self._sample = loader.sample()
        wanted = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}
        if wanted - sample.keys():
            raise InputError(
                f"these rows have {', '.join(sorted(sample))}: expected packed rows, with "
                f"{', '.join(sorted(wanted))}"
            )
        self.seq_len = sample["inputs"].shape[1]
        if self.seq_len < _LEAST_SLOTS:
            raise InputError(f"seq_len={self.seq_len}: expected at least {_LEAST_SLOTS} to check")
        begins = np.diff(sample["segment_ids"], axis=1) > 0
        self.restart = not sample["positions"][:, 1:][begins].any()
        """whether positions begin again with each segment"""
        self.weighted = sorted(filter(weighs_targets, sample))
        self.ends = _by_frequency(sample["targets"][_ends(sample["segment_ids"])])
        """targets that end documents, the most frequent first"""
        self.ids = _by_frequency(sample["inputs"][sample["segment_ids"] > 0])
        """inputs, the most frequent first"""
        inner = np.setdiff1d(self.ids, self.ends)
        self._ids = inner if len(inner) > 1 else np.sort(self.ids)  # to put in the place of others
        if len(self._ids) < 2:
            raise InputError("the first batch has fewer than 2 different tokens: nothing to change")
        self._random = np.random.default_rng(0)
        self.rows = [self.row(full=not number % 2) for number in range(len(sample["inputs"]))]
        """a batch of rows, none like another"""
        self.full, self.padded = (self.row(full=full) for full in (True, False))
        # Of a document that goes on: whether targets count that end one, a check of its own asks.
        last = self.seq_len - 1
        self.full = self.full.with_target(last, int(self.others(self.full.targets)[last]))

    def row(self, *, full: bool) -> Row:
        """Three segments; without `full` the last of them is padding. Some slots have no loss."""
        slots = self.seq_len
        first = int(self._random.integers(3, slots - 4, endpoint=True))
        second = int(self._random.integers(first + 2, slots - 2, endpoint=True))
        made = empty_row(slots)
        made.segments[:] = np.repeat([1, 2, 3 * full], [first, second - first, slots - second])
        made.tokens[:] = self._random.choice(self._ids, slots)
        made.targets[:-1] = made.tokens[1:]
        ends = _ends(made.segments)
        made.targets[ends] = self.ends[0]
        made.mask[:] = self._random.random(slots) < 0.8
        made.mask[0] = False
        made.mask[ends] = True
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

    def _arrays(self, rows: Sequence[Row]) -> Batch:
        """A batch of these rows, completed with padding, in jaxdata's own layout."""
        chosen = [*rows, *[empty_row(self.seq_len)] * (len(self.rows) - len(rows))]
        segments = np.stack([row.segments for row in chosen])
        weights = np.where(segments > 0, np.stack([row.weights for row in chosen]), 0)
        return {
            **{name: _beside(name, array, weights) for name, array in self._sample.items()},
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

    def batch(self, *rows: Row) -> Any:
        """A batch of these rows and padding, as the loader delivers it."""
        return self.loader.deliver(self._arrays(rows))

    def found(self, *rows: Row) -> float:
        """What the trainer returns for a batch of these rows and padding, whatever it is."""
        batch = self._arrays(rows)
        return self.of(self.loader.deliver(batch), batch["loss_mask"])

    def of(self, batch: Any, mask: Slots) -> float:
        """What the trainer returns for a batch in the loader's layout, with this mask."""
        return _mean(self._loss_of_batch(batch), mask)

    def loss(self, *rows: Row) -> float:
        """The mean loss of a batch of these rows and padding."""
        loss = self.found(*rows)
        if not math.isfinite(loss):
            raise AssertionError(f"the loss of a batch with targets is {loss}")
        return loss

    def close(self, one: float, other: float) -> bool:
        """Whether losses of different batches are equal."""
        return abs(one - other) <= self.tolerance * max(abs(one), abs(other))

    @cached_property
    def slot(self) -> int:
        """A slot of any full row whose loss is told: the last one, else one before it.

        The last, since its target is the input of no other slot.
        """
        last = self.seq_len - 1
        alone = self.found(self.full.with_loss(self.full.at(last)))
        return last if math.isfinite(alone) and alone else 1

    def swing(self, row: Row, slot: int) -> tuple[Row, float]:
        """Another target of a slot that moves its loss much, and how much it moves it alone."""
        alone = row.with_loss(row.at(slot))
        before, moved = self.loss(alone), {}
        target = row.targets[slot : slot + 1]
        for _ in range(4):
            target = self.others(target)
            moved[int(target[0])] = self.loss(alone.with_target(slot, int(target[0]))) - before
        best = max(moved, key=lambda each: abs(moved[each]))
        if not moves(before, before + moved[best]):
            raise NotTold(_FLAT)
        return row.with_target(slot, best), moved[best]

    @cached_property
    def is_flat(self) -> bool:
        """Whether no other target of a slot moves its loss."""
        try:
            return not self.swing(self.full, 1)
        except NotTold:
            return True

    def share(self, rows: Sequence[Row], others: Sequence[Row], alone: float) -> float:
        """The share of a slot in the loss of rows, of which `others` differ in its target.

        Args:
            rows: the rows.
            others: the same rows, of which one has the other target.
            alone: how much the loss moves where the slot has no others beside it.
        """
        one, other = self.loss(*rows), self.loss(*others)
        # The inputs are the same, so that even logits in low precision are.
        if self.tolerance / 10 * abs(one) > SHARE * abs(alone) / (OTHERS + 1):
            raise NotTold(f"the loss of a target moves by {abs(alone):.3g} only, of {one:.6g}")
        return (other - one) / alone


def _beside(name: str, sample: NDArray[Any], weights: Floats) -> NDArray[Any]:
    """Another array of the loader's: what may be a weight is one where there is no padding."""
    if weighs_targets(name):
        return weights.astype(sample.dtype)
    neutral = np.issubdtype(sample.dtype, np.floating) or "weight" in name
    alike = neutral and sample.shape == weights.shape
    return (weights > 0).astype(sample.dtype) if alike else np.zeros_like(sample)


def _ends(segments: NDArray[np.int32]) -> Slots:
    """The last slot of each segment."""
    return np.asarray((np.diff(segments, axis=-1, append=-1) != 0) & (segments > 0))


def _by_frequency(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    found, counts = np.unique(tokens, return_counts=True)
    return np.asarray(found[np.argsort(-counts, kind="stable")], np.int32)


def _mean(given: Any, mask: Any) -> float:
    """A loss in any of the forms that `check_trainer` takes."""
    if isinstance(given, tuple):
        total, count = (float(each) for each in given)
        return total / count if count else math.nan
    array = numbers_of(given)
    if not array.ndim:
        return float(array)
    if array.shape != mask.shape:
        raise InputError(
            f"loss_of_batch gave an array of shape {array.shape}: expected a number, (sum, count) "
            f"or losses of shape {mask.shape}"
        )
    return float(array[mask].sum() / mask.sum())


def numbers_of(array: Any) -> Floats:
    """An array of numpy, JAX or torch, in double precision."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array, np.float64)


def moves(one: float, other: float) -> bool:
    """Whether a loss changed."""
    return abs(one - other) > _EXACTLY * max(abs(one), abs(other))
