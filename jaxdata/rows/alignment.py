"""The two sides of a preference pair, cut to one length: the prompt's end and the answers' begin.

Both sides lose the same of their prompt, so that they go on differing in the answer alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.table import Batch

__all__ = ["Kept", "lay_out_side", "prompt_length", "what_fits"]


class Kept(NamedTuple):
    """How much of a pair is kept: the last tokens of the prompt, the first of each answer."""

    prompt: int
    answer: int


def what_fits(prompt: int, longest_answer: int, limit: int, max_prompt: int) -> Kept:
    """Decide what is kept of a pair.

    A pair that fits is kept whole. Of one that does not, the last `max_prompt` tokens of the
    prompt are kept, and where that is not enough, `limit - max_prompt` tokens of each answer.

    >>> what_fits(prompt=6, longest_answer=6, limit=10, max_prompt=4)
    Kept(prompt=4, answer=6)
    >>> what_fits(prompt=6, longest_answer=7, limit=10, max_prompt=4)
    Kept(prompt=4, answer=6)
    """
    if prompt + longest_answer <= limit:
        return Kept(prompt, longest_answer)
    prompt = min(prompt, max_prompt)
    if prompt + longest_answer <= limit:
        return Kept(prompt, longest_answer)
    return Kept(prompt, limit - max_prompt)


def prompt_length(loss_mask: NDArray[np.bool_]) -> int:
    """Tokens before the first that has loss."""
    return int(loss_mask.argmax()) if loss_mask.any() else len(loss_mask)


def lay_out_side(
    tokens: NDArray[np.integer], loss_mask: NDArray[np.bool_], kept: Kept, seq_len: int
) -> Batch:
    """Return one side as the arrays of a row: inputs, targets, loss_mask, segment_ids, positions.

    Args:
        tokens: (n,) the prompt and the answer.
        loss_mask: (n,) which have loss as targets.
        kept: how much of them is kept; together at most `seq_len + 1` tokens.
        seq_len: slots of the row.
    """
    prompt = prompt_length(loss_mask)
    part = slice(prompt - kept.prompt, prompt + kept.answer)
    tokens, loss_mask = tokens[part], loss_mask[part]
    slots = len(tokens) - 1
    row: Batch = {
        name: np.zeros(seq_len, np.int32)
        for name in ("inputs", "targets", "segment_ids", "positions")
    }
    row["loss_mask"] = np.zeros(seq_len, np.bool_)
    row["inputs"][:slots], row["targets"][:slots] = tokens[:-1], tokens[1:]
    row["loss_mask"][:slots] = loss_mask[1:]
    row["segment_ids"][:slots], row["positions"][:slots] = 1, np.arange(slots)
    return row
