"""Numbers of other people's data as token ids, each looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.rows.documents import Pieces

__all__ = ["LARGEST_ID", "as_ids"]

Ints = NDArray[np.int64]
LARGEST_ID = 2**31 - 1  # rows are int32


def as_ids(
    stored: NDArray[Any],
    dtype: np.dtype[Any],
    *,
    origin: str,
    documents: Ints,
    starts: Ints,
    counts: Ints,
) -> Pieces:
    """Ranges of documents, end to end in `stored`, as tokens of `dtype`.

    Raises:
        DatasetError: a number is no id; names `origin`, the document and the token.
    """
    wrong = np.flatnonzero(~_is_id(stored))
    if len(wrong):
        ends = np.cumsum(counts)
        at = int(np.searchsorted(ends, wrong[0], side="right"))
        token = int(starts[at] + wrong[0] - (ends[at] - counts[at]))
        raise DatasetError(
            f"{origin}: token {token} of document {documents[at]} is {stored[wrong[0]]}; expected "
            f"a whole number from 0 to {LARGEST_ID}"
        )
    return Pieces.cut(stored.astype(dtype), counts)


def _is_id(stored: NDArray[Any]) -> NDArray[np.bool_]:
    inside = (stored >= 0) & (stored <= LARGEST_ID)
    if stored.dtype.kind == "f":
        inside &= stored == np.floor(stored)
    return np.asarray(inside, np.bool_)
