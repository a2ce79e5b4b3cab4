"""Documents that have lengths and no text: for what is decided from lengths alone."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import ByteRanges
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.storage import Store

__all__ = ["MadeDocuments"]

Ints = NDArray[np.int64]


class MadeDocuments(Documents):
    """Documents of given lengths (see `Documents`); their tokens are a stub: always zeros.

    Args:
        lengths: tokens of each, (documents,) unsigned; may be a memory map.
        store: holds the same lengths as its array `length`, and keeps plans; None for neither.
        name: names the source in seeds.
    """

    dtype = np.dtype(np.uint16)

    def __init__(
        self, lengths: NDArray[Any], store: Store | None = None, name: str = "train/made"
    ) -> None:
        self.lengths, self.store, self.name = lengths, store, name
        self.fingerprint = hashlib.sha256(f"{name}:{len(lengths)}".encode()).hexdigest()
        self._zeros = memoryview(bytes(140_000))

    @classmethod
    def kept_in(cls, store: Store, name: str = "train/made") -> "MadeDocuments":
        """Open the lengths that a store holds, as a dataset opens its index."""
        return cls(store.read_array("length"), store, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process maps the file again."""
        if self.store is None:
            return MadeDocuments, (self.lengths, None, self.name)
        return MadeDocuments.kept_in, (self.store, self.name)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Zeros: nothing is read."""
        del documents, starts
        sizes = counts * self.dtype.itemsize
        nothing = np.zeros_like(sizes)
        return Gathered(ByteRanges([self._zeros], nothing, nothing, sizes), np.arange(len(counts)))
