"""Documents of foreign formats: ranges of flat files of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.foreign.mapped_files import sample
from jaxdata.format.storage.objects import AnyPath


@dataclass(frozen=True)
class FlatPart:
    """The documents of one flat file of tokens."""

    tokens: AnyPath
    dtype: np.dtype[Any]
    """of the tokens as stored, little-endian"""
    lengths: NDArray[Any]
    """(documents,) tokens of each, unsigned"""
    offsets: NDArray[Any]
    """(documents,) where each begins, in `unit` bytes"""
    unit: int
    context: NDArray[np.uint16] | None = None
    """(documents,) first tokens of each that have no loss"""
    mask: AnyPath | None = None
    """a byte for every token: 1 if it has loss"""


class TokenRanges:
    """The documents of several such files, in order; all have one dtype."""

    def __init__(self, spec: str, parts: Sequence[FlatPart]) -> None:
        self.spec, self.parts = spec, list(parts)
        self.dtype = parts[0].dtype
        for part in parts:
            if part.dtype != self.dtype or (part.mask is None) != (parts[0].mask is None):
                raise DatasetError(
                    f"{spec}: {parts[0].tokens.name} has tokens of {self.dtype}, "
                    f"{part.tokens.name} of {part.dtype}, or one has a loss mask and the other "
                    "has none: open them as separate sources"
                )
        self.lengths = _joined([part.lengths for part in parts])
        self.first = np.cumsum([0, *(len(part.lengths) for part in parts)])[:-1]
        self.masked = any(part.context is not None or part.mask is not None for part in parts)

    def place(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(number of the part, byte offset in its file) of documents; int64 (n,) each."""
        part = np.searchsorted(self.first, documents, side="right") - 1
        offset = np.empty(len(documents), np.int64)
        for number in set(part.tolist()):
            mine, here = part == number, self.parts[number]
            offset[mine] = here.offsets[documents[mine] - self.first[number]]
            offset[mine] *= here.unit
        return part, offset

    @cached_property
    def context(self) -> NDArray[np.uint16] | None:
        """(documents,) first tokens of each that have no loss; None if no file says so."""
        context = [part.context for part in self.parts if part.context is not None]
        return _joined(context) if context else None

    @cached_property
    def fingerprint(self) -> str:
        """Covers sizes, samples, dtype, lengths and context, but no paths or times."""
        content = hashlib.sha256(self.dtype.str.encode())
        for part in self.parts:
            files = [part.tokens] if part.mask is None else [part.tokens, part.mask]
            content.update("".join(map(sample, files)).encode())
        for array in (self.lengths, self.context):
            if array is not None:
                content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
