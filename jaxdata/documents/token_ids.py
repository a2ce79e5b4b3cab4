"""Token ids and loss masks of foreign data, every one checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError, JaxdataError
from jaxdata.ragged import Ints

LARGEST_ID = 2**31 - 1  # rows are int32


class GivenRanges(NamedTuple):
    """Ranges of documents that others gave; their values are checked end to end."""

    origin: str
    """what errors call the documents"""
    documents: Ints
    starts: Ints
    counts: Ints
    error: type[JaxdataError] = DatasetError
    """what is raised where a value is wrong; it names the document and the token"""

    def as_ids(self, stored: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Check that numbers are token ids, and cast them."""
        right = (stored >= 0) & (stored <= LARGEST_ID)
        if stored.dtype.kind == "f":
            right &= stored == np.floor(stored)
        self._check("token", stored, right, f"a whole number from 0 to {LARGEST_ID}")
        return stored.astype(dtype)

    def as_mask(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        """Check that numbers are 0 or 1, and cast them."""
        self._check("the mask of token", stored, (stored == 0) | (stored == 1), "0 or 1")
        return stored.astype(np.uint8)

    def _check(self, what: str, stored: NDArray[Any], right: Any, expected: str) -> None:
        wrong = np.flatnonzero(~right)
        if len(wrong):
            ends = np.cumsum(self.counts)
            at = int(np.searchsorted(ends, wrong[0], side="right"))
            token = int(self.starts[at] + wrong[0] - (ends[at] - self.counts[at]))
            raise self.error(
                f"{self.origin}: {what} {token} of document {self.documents[at]} is "
                f"{stored[wrong[0]]}; expected {expected}"
            )
