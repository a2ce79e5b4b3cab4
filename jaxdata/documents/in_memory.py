"""Documents in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.documents.base import Gathered, RangedDocuments, SideArray
from jaxdata.documents.token_ids import GivenRanges
from jaxdata.errors import InputError
from jaxdata.format.side_rules import check_side
from jaxdata.ragged import ByteRanges, Ints
from jaxdata.wording import counted

_AT_ONCE = 2**20  # tokens


class ArrayDocuments(RangedDocuments):
    """Documents in memory, for tests and small experiments.

    Args:
        tokens: the ids of each document.
        masks: for each token, whether it has loss as a target.
        name: `"<split>/<source>"`.
        side: more arrays of one value a token, whole numbers or floats of 8 to 64 bits, by name,
            each of one dtype: a Loader adds those that its `extras` name to its batches.

    Raises:
        InputError: an id is not a whole number from 0 to 2³¹−1, a mask is not of 0 and 1, or masks
            or side arrays are not of as many documents, and values, as there are tokens.

    >>> docs = ArrayDocuments([[5, 6, 0], [7, 0]], side={"weight": [[0.5, 2, 0], [1.0, 0]]})
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
        documents = [_array("tokens", number, ids) for number, ids in enumerate(tokens)]
        self._lengths = np.array([len(document) for document in documents], np.uint32)
        counts = self._lengths.astype(np.int64)
        self._first = np.cumsum(counts) - counts
        numbers, starts = np.arange(len(counts)), np.zeros_like(counts)
        given = GivenRanges(f"{type(self).__name__} {name!r}", numbers, starts, counts, InputError)
        ids = given.as_ids(_joined("tokens", documents), np.dtype(np.uint32))
        self.dtype = np.dtype(np.uint16 if int(ids.max(initial=0)) < 2**16 else np.uint32)
        self._tokens = ids.astype(self.dtype.newbyteorder("<"))
        self._masks = np.empty(0, np.uint8)
        if masks is not None:
            self._masks = given.as_mask(_joined("masks", self._beside("masks", masks)))
        self._side = {name: self._side_of(name, arrays) for name, arrays in side.items()}

    def _side_of(self, name: str, given: Sequence[ArrayLike]) -> NDArray[Any]:
        """Check a side array, whose documents have one dtype; it is not guessed."""
        check_side(name)
        arrays = self._beside(repr(name), given)
        typed = [number for number, array in enumerate(arrays) if len(array)]
        dtype = arrays[typed[0]].dtype if typed else np.dtype(np.int64)
        check_side(name, dtype)
        for number in typed:
            if (other := arrays[number].dtype) != dtype:
                raise InputError(
                    f"{name!r} of document {number} is of {other}, of document {typed[0]} of "
                    f"{dtype}; give arrays of one dtype"
                )
        joined = np.concatenate([np.empty(0, dtype), *(arrays[number] for number in typed)])
        return joined.astype(dtype.newbyteorder("<"))

    def _beside(self, what: str, given: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Arrays of one value for each token."""
        arrays = [_array(what, number, values) for number, values in enumerate(given)]
        if len(arrays) != len(self):
            raise InputError(f"{what} of {counted(len(arrays), 'document')}, tokens of {len(self)}")
        for number, (array, length) in enumerate(zip(arrays, self._lengths.tolist(), strict=True)):
            if array.shape != (length,):
                raise InputError(
                    f"document {number}: {length} tokens, {what} of shape {array.shape}"
                )
        return arrays

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return self._lengths

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens, masks and side arrays."""
        content = hashlib.sha256()
        for array in (self._lengths, self._tokens, self._masks):
            for first in range(0, len(array), _AT_ONCE):
                content.update(array[first : first + _AT_ONCE].astype(np.int64).tobytes())
        for name, values in self._side.items():
            content.update(f"{name} {values.dtype}".encode())
            content.update(values.tobytes())
        return content.hexdigest()

    @property
    def side(self) -> dict[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        return {
            name: SideArray(values.dtype, partial(self._slices, values))
            for name, values in self._side.items()
        }

    def __repr__(self) -> str:
        return (
            f"ArrayDocuments({self.name!r}, {len(self):,} documents, {len(self._tokens):,} tokens)"
        )

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._tokens, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._masks, documents, starts, counts)

    def _slices(
        self, values: NDArray[Any], documents: Ints, starts: Ints, counts: Ints
    ) -> Gathered:
        begin = (self._first[documents] + starts) * values.itemsize
        memory = values.data.cast("B")
        views = ByteRanges([memory], np.zeros_like(begin), begin, begin + counts * values.itemsize)
        return Gathered(views, np.arange(len(documents)))


def _array(what: str, number: int, values: ArrayLike) -> NDArray[Any]:
    """The values of a document."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"document {number}: {what} are no array: {error}") from None
    if array.ndim != 1 and what == "tokens":
        raise InputError(
            f"document {number}: tokens of shape {array.shape}; expected a list of ids"
        )
    return array


def _joined(what: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of numbers end to end."""
    for number, array in enumerate(arrays):
        if len(array) and array.dtype.kind not in ("biuf" if what == "masks" else "iuf"):
            raise InputError(
                f"document {number}: {what} are of dtype {array.dtype}; expected numbers"
            )
    return np.concatenate([np.empty(0, np.uint8), *arrays])
