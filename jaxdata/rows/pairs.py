"""Preference pairs: rows with a chosen and a rejected side, in one order, cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.numbers import validated
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.array_documents import as_documents
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import KeptDocuments, identified, in_source
from jaxdata.rows.map_datasets import KnownRows
from jaxdata.rows.table import MOST_SLOTS, Batch, row_number, rows_of_epochs


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


_MAX_PROMPT = 512


@validated
def pairs(
    chosen: Any,
    rejected: Any,
    *,
    seq_len: int,
    max_prompt: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
) -> PairDataset:
    """Pair the two sources of `--task dpo`, document by document.

    A row is a dict of arrays of shape (seq_len,): for each side, `chosen` and `rejected`,
    `chosen_inputs`, `_targets`, `_segment_ids`, `_positions` (int32) and `_loss_mask` (bool). The
    prompt has no loss. A pair longer than a row loses the beginning of its prompt on both sides,
    then the ends of its answers.

    Args:
        chosen: the source of chosen answers, `dataset.source(split, "<name>/chosen")`.
        rejected: the source of rejected answers.
        seq_len: slots of a row.
        max_prompt: tokens of the prompt to keep if a pair does not fit; None for the lesser of 512
            and half a row.
        seed: root of every order.
        shuffle: False for the order of the dataset.

    Returns:
        A `grain.MapDataset`; row *i* beyond the end is row `i % n` of epoch `i // n`, and every
        epoch has its own order. A `Loader` takes it like packed rows.

    Raises:
        InputError: the two are not the sides of one conversion, or an argument is out of range.

    >>> import jaxdata
    >>> prompt, good, bad = [5, 6], [7, 0], [8, 9, 0]
    >>> chosen = jaxdata.ArrayDocuments([prompt + good], masks=[[0, 0, 1, 1]])
    >>> rejected = jaxdata.ArrayDocuments([prompt + bad], masks=[[0, 0, 1, 1, 1]])
    >>> row = pairs(chosen, rejected, seq_len=5)[0]
    >>> row["chosen_inputs"].tolist(), row["rejected_targets"].tolist()
    ([5, 6, 7, 0, 0], [6, 8, 9, 0, 0])
    """
    sides = as_documents(chosen), as_documents(rejected)
    _check_sides(*sides)
    if not 1 <= seq_len <= MOST_SLOTS:
        raise InputError(f"seq_len={seq_len}: expected 1 to {MOST_SLOTS:,}")
    most = min(_MAX_PROMPT, (seq_len + 1) // 2) if max_prompt is None else max_prompt
    if not 1 <= most <= seq_len:
        raise InputError(f"max_prompt={max_prompt!r}: expected 1 to seq_len = {seq_len}")
    return PairDataset(sides, seq_len, most, seed, shuffle)


class PairDataset(KnownRows):
    """Rows of preference pairs; made by :func:`pairs`."""

    def __init__(
        self,
        sides: tuple[Documents, Documents],
        seq_len: int,
        max_prompt: int,
        seed: int,
        shuffle: bool,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self._sides, self._settings = sides, (seq_len, max_prompt, seed, shuffle)
        lengths = np.asarray(sides[0].lengths)
        self._pairs = None if lengths.all() else np.flatnonzero(lengths)
        """those that were not deleted; None for all"""
        self._epoch = len(lengths) if self._pairs is None else len(self._pairs)
        self._rows = self._epoch if rows is None else rows
        self._orders: dict[int, Permutation] = {}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._row(row_number(index, len(self)))

    def _row(self, index: int) -> Batch:
        seq_len, max_prompt, _, _ = self._settings
        document = self._document(index)
        if any(docs.are_blank(np.array([document])).any() for docs in self._sides):
            nothing = np.zeros(1, np.int32), np.zeros(1, np.bool_)  # a token has no slot
            return self._arrays([nothing, nothing], Truncation(1, 0))
        sides = [_side(docs, document) for docs in self._sides]
        prompts = [prompt_length(mask) for _, mask in sides]
        self._check_prompts(document, sides, prompts)
        longest = max(len(tokens) for tokens, _ in sides) - prompts[0]
        return self._arrays(sides, truncation_of(prompts[0], longest, seq_len + 1, max_prompt))

    def _arrays(self, sides: Sequence[Side], truncation: Truncation) -> Batch:
        """The row of two sides."""
        return {
            f"{name}_{array}": value
            for name, (tokens, mask) in zip(("chosen", "rejected"), sides, strict=True)
            for array, value in lay_out_side(tokens, mask, truncation, self._settings[0]).items()
        }

    def _document(self, index: int) -> int:
        epoch, within = divmod(index, self._epoch)
        _, _, seed, shuffle = self._settings
        if shuffle:
            if epoch not in self._orders:
                key = derive(seed, self._sides[0].name, "pairs", epoch)
                self._orders = {epoch: Permutation(self._epoch, key)}
            within = int(self._orders[epoch](within))
        return within if self._pairs is None else int(self._pairs[within])

    def _check_prompts(self, document: int, sides: Sequence[Side], prompts: Sequence[int]) -> None:
        one, other = (tokens[:prompt] for (tokens, _), prompt in zip(sides, prompts, strict=True))
        if not np.array_equal(one, other):
            raise DatasetError(
                f"document {in_source(self._sides[0], document)[1]} of {self._sides[0].name} and "
                f"{in_source(self._sides[1], document)[1]} of {self._sides[1].name} have different "
                "prompts: pass the two sides of one conversion"
            )

    @validated
    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> Any:
        """Several epochs (`num_epochs=None`: endless), each reordered if `reseed_each_epoch`."""
        if not reseed_each_epoch:
            return super().repeat(num_epochs, reseed_each_epoch=False)
        rows = rows_of_epochs(len(self), num_epochs)
        return PairDataset(self._sides, *self._settings, rows)

    def identity(self) -> dict[str, Any]:
        names = ("seq_len", "max_prompt", "seed", "shuffle")
        facts = identified({docs.name: docs for docs in self._sides}) | {"pairs": True}
        return facts | dict(zip(names, self._settings, strict=True))

    def __repr__(self) -> str:
        return f"PairDataset({len(self)} pairs of {self._settings[0]})"


Side = tuple[NDArray[Any], NDArray[np.bool_]]
"""tokens and loss mask of a document"""


def _side(docs: Documents, document: int) -> Side:
    found = docs[document]
    return found["tokens"].astype(np.int32), found["loss_mask"]


def _check_sides(chosen: Documents, rejected: Documents) -> None:
    _check_lists(chosen, rejected)
    if len(chosen) != len(rejected) or not len(chosen):
        raise InputError(
            f"{chosen.name} has {len(chosen):,} documents and {rejected.name} {len(rejected):,}: "
            "expected the two sides of one conversion with --task dpo, with equal numbers"
        )
    for docs in (chosen, rejected):
        if not docs.masked:
            raise InputError(
                f"{docs.name} has no loss masks to mark the ends of its prompts: convert it with "
                "--task dpo"
            )


def _check_lists(chosen: Documents, rejected: Documents) -> None:
    """Refuse sides of which different documents are kept."""
    lists = [
        docs.view.entry.checksums["document"] if isinstance(docs, KeptDocuments) else None
        for docs in (chosen, rejected)
    ]
    through = chosen.functions or rejected.functions
    if lists[0] != lists[1] or (through and _numbers(chosen) != _numbers(rejected)):
        named = " and ".join(f"{docs.name} through {_view_of(docs)}" for docs in (chosen, rejected))
        raise InputError(
            f"{named} list different documents: both sides of a pair need the same view, as "
            "jaxdata dedup makes it for both"
        )


def _numbers(docs: Documents) -> list[int]:
    """The numbers that documents have in their source."""
    found: list[int] = docs.in_base(np.arange(len(docs)), np.zeros(len(docs), int))[0].tolist()
    return found


def _view_of(docs: Documents) -> str:
    if docs.functions:
        return ", ".join(docs.functions)
    return f"the view {docs.view.name!r}" if isinstance(docs, KeptDocuments) else "no view"
