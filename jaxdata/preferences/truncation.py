"""Truncation of preference pairs: the end of the prompt and the beginnings of the answers are kept.

Both sides lose the same tokens of the prompt, so they still differ only in the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.table import Batch


class Truncation(NamedTuple):
    """What is kept of a pair: the last tokens of the prompt, the first of each answer."""

    prompt: int
    answer: int


def truncation_of(prompt: int, longest_answer: int, limit: int, max_prompt: int) -> Truncation:
    """Return how a pair is truncated.

    A pair that fits is kept whole. Otherwise the last `max_prompt` tokens of the prompt are kept,
    and if that is not enough, `limit - max_prompt` tokens of each answer.

    >>> truncation_of(prompt=6, longest_answer=6, limit=10, max_prompt=4)
    Truncation(prompt=4, answer=6)
    >>> truncation_of(prompt=6, longest_answer=7, limit=10, max_prompt=4)
    Truncation(prompt=4, answer=6)
    """
    if prompt + longest_answer > limit:
        prompt = min(prompt, max_prompt)
    fits = prompt + longest_answer <= limit
    return Truncation(prompt, longest_answer if fits else limit - max_prompt)


def prompt_length(loss_mask: NDArray[np.bool_]) -> int:
    """Number of tokens before the first with loss."""
    return int(loss_mask.argmax()) if loss_mask.any() else len(loss_mask)


def lay_out_side(
    tokens: NDArray[np.integer], loss_mask: NDArray[np.bool_], truncation: Truncation, seq_len: int
) -> Batch:
    """Return one side as the arrays of a row: inputs, targets, loss_mask, segment_ids, positions.

    Of `tokens`, the prompt and the answer, at most `seq_len + 1` are kept; `loss_mask` says which
    of them have loss as targets.
    """
    prompt = prompt_length(loss_mask)
    chosen = slice(prompt - truncation.prompt, prompt + truncation.answer)
    tokens, loss_mask = tokens[chosen], loss_mask[chosen]
    slots = len(tokens) - 1
    names = ("inputs", "targets", "segment_ids", "positions")
    row: Batch = {name: np.zeros(seq_len, np.int32) for name in names}
    row["loss_mask"] = np.zeros(seq_len, np.bool_)
    row["inputs"][:slots], row["targets"][:slots] = tokens[:-1], tokens[1:]
    row["loss_mask"][:slots] = loss_mask[1:]
    row["segment_ids"][:slots], row["positions"][:slots] = 1, np.arange(slots)
    return row
