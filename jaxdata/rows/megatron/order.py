"""Megatron's order of samples of one dataset, its blend of several, and their settings."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyArray, Floats, Ints
from jaxdata.base.settings import Settings
from jaxdata.rows.packing.settings import AnyPositions, Slots

_ALWAYS = ("seq_len", "seed", "reset", "eod_mask_loss")  # in states, also at their defaults
_OF_THE_STREAM = ("add_extra_token_to_sequence", "drop_last_partial_validation_sequence")


class GptSettings(Settings):
    """How documents become samples; the arguments of `gpt`."""

    seq_len: Slots
    seed: int = Field(default=1234, ge=0, lt=2**32)
    """as numpy's RandomState takes it"""
    reset: bool = False
    """segments and positions restart with documents; otherwise a row is one segment"""
    eod_mask_loss: bool = False
    """no loss where the input is the last token of a document"""
    by: Literal["document", "eod"] = "document"
    """what ends a document: its length, or with "eod" each `eod_id`, and nothing else"""
    eod_id: int | None = None
    positions: AnyPositions = "segment"
    """with `reset`: "row" lets them run along the row"""
    add_extra_token_to_sequence: Literal[0, 1] = 1
    """0: a sample has only `seq_len` tokens, and no target in its last slot"""
    drop_last_partial_validation_sequence: bool = True
    """False: the rest of the tokens is a row too, completed with padding"""
    pad_id: int | None = None
    """this id has no loss, and is 0 in rows"""

    @model_validator(mode="after")
    def _fit_together(self) -> "GptSettings":
        if (self.by == "eod") != (self.eod_id is not None):
            raise InputError(
                f"by={self.by!r}, eod_id={self.eod_id!r}: expected by='eod' and eod_id=, the id "
                "that ends documents (tokenizer.eod of Megatron, eod_id of a dataset), or neither"
            )
        if self.pad_id is not None and self.pad_id < 0:
            raise InputError(
                f"pad_id={self.pad_id}: expected an id, tokenizer.pad of Megatron; where that is "
                "negative, or another special token too, Megatron masks nothing: leave pad_id out"
            )
        return self

    def facts(self) -> dict[str, Any]:
        """What determines the rows; others than these are left out at their defaults."""
        return {name: getattr(self, name) for name in _ALWAYS} | self._changed()

    def stream_facts(self) -> dict[str, Any]:
        """Those of them that determine which tokens each sample has, at other than defaults."""
        changed = self._changed()
        return {name: changed[name] for name in _OF_THE_STREAM if name in changed}

    def _changed(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True, exclude={*_ALWAYS})


PARTS = ("train", "valid", "test")
_SEPARATE_BELOW = 0.80  # of an epoch's samples


@dataclass(frozen=True)
class Epochs:
    """Epochs of a dataset for the samples wanted."""

    count: int
    separate: bool
    """whether the last epoch is shuffled separately"""
    before_last: int
    """samples of the epochs before the last; all if it is not separate"""
    samples: int
    """samples of all whole epochs, at least as many as wanted"""


def plan_epochs(
    tokens: int, seq_len: int, num_samples: int | None, extra: int = 1, drop_last: bool = True
) -> Epochs:
    """Compute the number of epochs of `tokens` that give the samples wanted; None for one epoch.

    A sample has `extra` tokens beyond `seq_len`: the last label. Unless `drop_last`, the rest of
    the tokens is a sample too.

    >>> plan_epochs(28, 4, 8)
    Epochs(count=2, separate=True, before_last=6, samples=13)
    """
    wanted = 0 if num_samples is None else num_samples * seq_len + extra
    count = max(1, -(-wanted // tokens))
    samples = (count * tokens - extra) // seq_len
    if not drop_last:  # counted in single precision, as Megatron does
        samples = math.ceil(np.float32(count * tokens - extra) / np.float32(seq_len))
    if count == 1 or num_samples is None:
        return Epochs(count, False, samples, samples)
    before = ((count - 1) * tokens - extra) // seq_len
    of_an_epoch = (tokens - extra) // seq_len
    separate = num_samples - before < int(_SEPARATE_BELOW * of_an_epoch)
    return Epochs(count, separate, before if separate else samples, samples)


def document_order(
    documents: NDArray[np.int32], epochs: Epochs, random: np.random.RandomState
) -> NDArray[np.int32]:
    """The documents of all epochs in stream order; drawn before `sample_order`."""
    counts = [epochs.count - 1, 1] if epochs.separate else [epochs.count]
    return _shuffled([np.tile(documents, count) for count in counts], random)


def sample_order(epochs: Epochs, random: np.random.RandomState) -> Ints:
    """The sample of the stream for each row."""
    small = epochs.samples < 2**32 - 2
    cuts = [0, epochs.before_last, epochs.samples] if epochs.separate else [0, epochs.samples]
    kind = np.uint32 if small else np.int64
    return _shuffled([np.arange(*ends, dtype=kind) for ends in pairwise(cuts)], random)


def _shuffled(parts: list[AnyArray], random: np.random.RandomState) -> AnyArray:
    """The parts end to end, each shuffled by itself."""
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def split_range(split: str, part: str, documents: int) -> range:
    """The documents of one part of a split like `"969,30,1"`: contiguous, before any shuffling.

    >>> split_range("98,1,1", "valid", 1_000)
    range(980, 990)
    """
    weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    if not 1 <= len(weights) <= 3 or not sum(weights) > 0:
        raise InputError(f"split={split!r}: expected one to three weights, like '969,30,1'")
    padded = np.array([*weights, 0.0, 0.0][:3])
    edges = list(accumulate((padded / np.sum(padded)).tolist(), initial=0.0))
    number = PARTS.index(part)
    return range(round(edges[number] * documents), round(edges[number + 1] * documents))


_MOST_LANES = 4096
_SHORTEST_LANE = 512
_WARM_UP = 256


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights that add up to 1, in double precision."""
    given = np.array(weights, np.float64)
    shares: list[float] = (given / np.sum(given)).tolist()
    return shares


def blend_order(
    weights: Sequence[float], size: int, limits: Sequence[int] | None = None
) -> NDArray[np.int16]:
    """The dataset of each sample of a blend.

    Step *i* takes the dataset with the largest `weight * max(i, 1) - count`, the first of several.

    Args:
        weights: shares of the datasets.
        size: samples.
        limits: samples of each dataset, after which it is skipped; None for no limit.

    >>> blend_order([0.5, 0.3, 0.2], 12).tolist()
    [0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1]
    """
    share = np.array(weights, np.float64)[:, None]
    most = None if limits is None else np.array(limits, np.float64)[:, None]
    lanes = max(1, min(_MOST_LANES, size // _SHORTEST_LANE))
    length = -(-size // lanes)
    starts = np.arange(lanes) * length
    begin = _guess(share, most, starts)
    begin[:, 0] = 0
    while True:  # until each lane begins as the one before it ends
        order, end = _walk(share, most, starts, begin, length)
        if (begin[:, 1:] == end[:, :-1]).all():
            return order.ravel()[:size]
        begin[:, 1:] = end[:, :-1]


def _guess(share: Floats, most: Floats | None, starts: Ints) -> Floats:
    """Guess the counts at the starts, by walks that begin shortly before them."""
    early = np.maximum(starts - _WARM_UP, 0)
    fair = early * share
    counts = np.floor(fair)
    rank = np.argsort(np.argsort(counts - fair, axis=0), axis=0)
    counts += rank < early - counts.sum(axis=0)
    return _walk(share, most, early, counts, _WARM_UP)[1]


def _walk(
    share: Floats, most: Floats | None, starts: Ints, begin: Floats, length: int
) -> tuple[NDArray[np.int16], Floats]:
    """`length` steps of each lane: (lanes, length) datasets, and the counts after them.

    Args:
        share: (datasets, 1).
        most: (datasets, 1), or None.
        starts: (lanes,) the step at which each begins.
        begin: (datasets, lanes) counts before it.
        length: steps.
    """
    order = np.empty((length, len(starts)), np.int16)
    counts, lane = begin.copy(), np.arange(len(starts))
    for number in range(length):
        error = share * np.maximum(starts + number, 1.0) - counts
        if most is not None:
            error[counts >= most] = -np.inf
        taken = error.argmax(axis=0)
        order[number] = taken
        counts[taken, lane] += 1
    return order.T, counts


def places_in_datasets(order: NDArray[np.int16], datasets: int) -> Ints:
    """The number, within its dataset, of each sample of a blend; samples are taken in order.

    >>> places_in_datasets(np.array([0, 1, 0, 0], np.int16), 2).tolist()
    [0, 0, 1, 2]
    """
    places = np.empty(len(order), np.int64)
    for number in range(datasets):
        mine = np.flatnonzero(order == number)
        places[mine] = np.arange(len(mine))
    return places
