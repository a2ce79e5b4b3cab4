"""Token ids of foreign data, every one checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Gathered
from jaxdata.errors import DatasetError
from jaxdata.ragged import Ints

LARGEST_ID = 2**31 - 1  # rows are int32


def as_ids(
    stored: NDArray[Any], dtype: np.dtype[Any], origin: str, ranges: tuple[Ints, Ints, Ints]
) -> Gathered:
    """Check and cast `ranges` (documents, starts, counts), which are end to end in `stored`.

    Raises:
        DatasetError: a number is not a token id; names `origin`, the document and the token.
    """
    documents, starts, counts = ranges
    wrong = np.flatnonzero(~_is_id(stored))
    if len(wrong):
        ends = np.cumsum(counts)
        at = int(np.searchsorted(ends, wrong[0], side="right"))
        token = int(starts[at] + wrong[0] - (ends[at] - counts[at]))
        raise DatasetError(
            f"{origin}: token {token} of document {documents[at]} is {stored[wrong[0]]}; expected "
            f"a whole number from 0 to {LARGEST_ID}"
        )
    return Gathered.cut(stored.astype(dtype), counts)


def _is_id(stored: NDArray[Any]) -> NDArray[np.bool_]:
    inside = (stored >= 0) & (stored <= LARGEST_ID)
    if stored.dtype.kind == "f":
        inside &= stored == np.floor(stored)
    return np.asarray(inside, np.bool_)
