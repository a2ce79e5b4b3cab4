"""`evaluation_rows`: every source of a split once, the same rows every time."""

from __future__ import annotations

import math
from typing import Unpack

from jaxdata.documents.dataset import Dataset, source_names
from jaxdata.errors import InputError
from jaxdata.map_datasets.row_dataset import RowDataset
from jaxdata.mixing.concatenated import ConcatenatedRows
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.packing.settings import ORDERING, PackSettings, RowArguments, with_settings
from jaxdata.packing.strategies import evaluation_strategy
from jaxdata.scalars import is_number, takes_numpy


@takes_numpy
@with_settings(PackSettings, without=("seed", "shuffle", *ORDERING))
def evaluation_rows(
    dataset: Dataset,
    split: str,
    *,
    seq_len: int,
    eval_tokens: float | None = None,
    **packing: Unpack[RowArguments],
) -> RowDataset:
    """Every source of a split once, in the order of the dataset: the same rows every time.

    So every epoch is the same: `rows[i]` beyond the end is row `i % n` of the *n* rows, and
    `rows.repeat(2)` gives them twice. A strategy that would leave tokens out of the measure
    (`crop`) is replaced by `best_fit`.

    Args:
        dataset: where the split is.
        split: which.
        seq_len: slots of a row.
        eval_tokens: most slots; None for all.
        strategy: as for `pack`, like what follows; `"crop"` is replaced.
        overlap: tokens of masked context at the start of a window.
        positions: where positions restart: `"segment"` or `"row"`.
        max_segments: most segments in a row; None for no limit.
    """
    if "strategy" in packing:
        packing["strategy"] = evaluation_strategy(packing["strategy"])
    settings = PackSettings(seq_len, shuffle=False, **packing)
    sources = [dataset.source(split, name) for name in source_names(dataset, split)]
    if eval_tokens is not None and not (is_number(eval_tokens) and 0 < eval_tokens < math.inf):
        raise InputError(f"eval_tokens={eval_tokens!r}: expected a number above 0, or None for all")
    limit = None if eval_tokens is None else math.ceil(eval_tokens / seq_len)
    return RowDataset(ConcatenatedRows([PackedRows(docs, settings) for docs in sources], limit))
