"""Documents in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.documents.base import Document, Gathered, Items, SideArray, page_ends
from jaxdata.errors import InputError
from jaxdata.format.side_rules import check_side
from jaxdata.ragged import ByteRanges, Ints


class ArrayDocuments(Items):
    """Documents in memory, for tests and small experiments.

    Args:
        tokens: the ids of each document.
        masks: for each token, whether it has loss as a target.
        name: `"<split>/<source>"`.
        side: more arrays of one value a token, whole numbers or floats of 8 to 64 bits, by name: a
            Loader adds those that its `extras` name to its batches.

    >>> docs = ArrayDocuments([[5, 6, 0], [7, 0]], side={"weight": [[0.5, 2, 0], [1, 0]]})
    >>> docs.lengths.tolist(), docs[1]["tokens"].tolist(), docs[1]["weight"].tolist()
    ([3, 2], [7, 0], [1.0, 0.0])
    """

    store = None

    def __init__(
        self,
        tokens: Sequence[ArrayLike],
        masks: Sequence[ArrayLike] | None = None,
        name: str = "documents",
        side: Mapping[str, Sequence[ArrayLike]] = MappingProxyType({}),
    ) -> None:
        self.name, self.masked = name, masks is not None
        self._tokens = [np.asarray(document) for document in tokens]
        self._masks = [np.asarray(mask, np.uint8) for mask in masks or []]
        for number, (document, mask) in enumerate(zip(self._tokens, self._masks, strict=False)):
            if len(mask) != len(document):
                raise InputError(f"document {number}: {len(document)} tokens, mask of {len(mask)}")
        self._side = {name: self._side_of(name, arrays) for name, arrays in side.items()}

    def _side_of(self, name: str, arrays: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Check a side array, and give it one dtype."""
        values = [np.asarray(array) for array in arrays]
        if len(values) != len(self._tokens):
            raise InputError(
                f"side={{{name!r}: …}} is of {len(values)} documents, tokens of {len(self._tokens)}"
            )
        for number, (document, array) in enumerate(zip(self._tokens, values, strict=True)):
            if array.shape != document.shape:
                raise InputError(
                    f"document {number}: {len(document)} tokens, {name!r} of shape {array.shape}"
                )
        dtype = np.result_type(*values) if values else np.dtype(np.int64)
        check_side(name, dtype)
        return [array.astype(dtype.newbyteorder("<")) for array in values]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned integer, of 16 or 32 bits, that holds every token."""
        largest = max((int(document.max(initial=0)) for document in self._tokens), default=0)
        return np.dtype(np.uint16 if largest < 2**16 else np.uint32)

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return np.array([len(document) for document in self._tokens], np.uint32)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens, masks and side arrays."""
        content = hashlib.sha256()
        for array in (self.lengths, *self._tokens, *self._masks):
            content.update(np.ascontiguousarray(array).astype(np.int64).tobytes())
        for name, side in self._side.items():
            content.update(f"{name} {self.side[name].dtype}".encode())
            content.update(b"".join(array.tobytes() for array in side))
        return content.hexdigest()

    @cached_property
    def side(self) -> dict[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        return {
            name: SideArray(
                arrays[0].dtype if arrays else np.dtype("<i8"),
                partial(
                    self._slices,
                    [memoryview(array.tobytes()) for array in arrays],
                    arrays[0].itemsize if arrays else 8,
                ),
            )
            for name, arrays in self._side.items()
        }

    def page_ends(self, size: int) -> Ints:
        """See `Documents`."""
        return page_ends(self, size)

    def __repr__(self) -> str:
        tokens = int(self.lengths.sum(dtype=np.int64))
        return f"ArrayDocuments({self.name!r}, {len(self):,} documents, {tokens:,} tokens)"

    def __len__(self) -> int:
        return len(self._tokens)

    def _document(self, index: int) -> Document:
        item = {"tokens": self._tokens[index]}
        if self.masked:
            item["loss_mask"] = self._masks[index].astype(bool)
        return item | {name: arrays[index] for name, arrays in self._side.items()}

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._bytes, self.dtype.itemsize, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices([m.data for m in self._masks], 1, documents, starts, counts)

    @cached_property
    def _bytes(self) -> list[memoryview]:
        little = self.dtype.newbyteorder("<")
        return [memoryview(document.astype(little).tobytes()) for document in self._tokens]

    def _slices(
        self, buffers: list[memoryview], item: int, documents: Ints, starts: Ints, counts: Ints
    ) -> Gathered:
        views = ByteRanges(buffers, documents, starts * item, (starts + counts) * item)
        return Gathered(views, np.arange(len(documents)))

    def __reduce__(self) -> tuple[Any, ...]:
        masks = self._masks if self.masked else None
        return ArrayDocuments, (self._tokens, masks, self.name, self._side)
