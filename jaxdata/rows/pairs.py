"""Preference pairs: rows with a chosen and a rejected side, in one order, cut to fit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.numbers import validated
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.array_documents import as_documents
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import identified, in_source
from jaxdata.rows.map_datasets import KnownRows
from jaxdata.rows.table import MOST_SLOTS, Batch, row_number, rows_of_epochs


def truncation_of(prompt: int, longest_answer: int, limit: int, max_prompt: int) -> tuple[int, int]:
    """Return how much is kept of a pair: the last tokens of the prompt, the first of each answer.

    A pair that fits is kept whole. Otherwise the last `max_prompt` tokens of the prompt are kept,
    and if that is not enough, `limit - max_prompt` tokens of each answer.

    >>> truncation_of(prompt=6, longest_answer=6, limit=10, max_prompt=4)
    (4, 6)
    >>> truncation_of(prompt=6, longest_answer=7, limit=10, max_prompt=4)
    (4, 6)
    """
    if prompt + longest_answer > limit:
        prompt = min(prompt, max_prompt)
    fits = prompt + longest_answer <= limit
    return prompt, longest_answer if fits else limit - max_prompt


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
) -> "PairDataset":
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
        self._pairs = np.flatnonzero(np.asarray(sides[0].lengths))
        """those that were not deleted"""
        self._rows = len(self._pairs) if rows is None else rows
        self._orders: dict[int, Permutation] = {}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._row(self._document(row_number(index, len(self))))

    def _document(self, index: int) -> int:
        epoch, within = divmod(index, len(self._pairs))
        _, _, seed, shuffle = self._settings
        if shuffle:
            if epoch not in self._orders:
                key = derive(seed, self._sides[0].name, "pairs", epoch)
                self._orders = {epoch: Permutation(len(self._pairs), key)}
            within = int(self._orders[epoch](within))
        return int(self._pairs[within])

    def _row(self, document: int) -> Batch:
        seq_len, max_prompt, _, _ = self._settings
        if any(docs.are_blank([document]).any() for docs in self._sides):
            found = [np.zeros((2, 1), np.int32)] * 2  # a token has no slot
        else:
            read = [docs[document] for docs in self._sides]
            found = [np.stack([one["tokens"], one["loss_mask"]]).astype(np.int32) for one in read]
        # Of each the tokens before the first with loss.
        prompts = [int(np.append(mask > 0, True).argmax()) for _, mask in found]
        one, other = (tokens[:prompt] for (tokens, _), prompt in zip(found, prompts, strict=True))
        if not np.array_equal(one, other):
            named = (f"{in_source(docs, document)[1]} of {docs.name}" for docs in self._sides)
            raise DatasetError(
                f"document {' and '.join(named)} have different prompts: pass the two sides of one "
                "conversion"
            )
        longest = max(side.shape[1] for side in found) - len(one)
        prompt, answer = truncation_of(len(one), longest, seq_len + 1, max_prompt)
        chosen = slice(len(one) - prompt, len(one) + answer)
        return {
            f"{name}_{array}": value
            for name, side in zip(("chosen", "rejected"), found, strict=True)
            for array, value in _lay_out(side[:, chosen], seq_len).items()
        }

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


def _lay_out(side: NDArray[np.int32], seq_len: int) -> Batch:
    """One side as the arrays of a row, from its tokens, at most `seq_len + 1`, and their masks."""
    names = ("inputs", "targets", "segment_ids", "positions")
    row: Batch = {name: np.zeros(seq_len, np.int32) for name in names}
    row["loss_mask"] = np.zeros(seq_len, np.bool_)
    (tokens, mask), slots = side, side.shape[1] - 1
    row["inputs"][:slots], row["targets"][:slots] = tokens[:-1], tokens[1:]
    row["loss_mask"][:slots] = mask[1:]
    row["segment_ids"][:slots], row["positions"][:slots] = 1, np.arange(slots)
    return row


def _check_sides(chosen: Documents, rejected: Documents) -> None:
    listed = [docs.in_base(*[np.arange(len(docs))] * 2)[0] for docs in (chosen, rejected)]
    derived = any(docs.base is not docs for docs in (chosen, rejected))
    if derived and listed[0].tolist() != listed[1].tolist():
        raise InputError(
            f"{chosen.name} and {rejected.name} list different documents: both sides of a pair "
            "need the same view or function, as jaxdata dedup makes it for both"
        )
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
