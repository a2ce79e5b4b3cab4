"""GPT-Simple's pair of files: `PREFIX.bin`, windows of tokens end to end, and `PREFIX.idx`.

The index, little-endian: `GPTS`, version, dtype code (2: u16, 4: u32) and windows n (u32 each);
token offsets i64 (n + 1,); and u16 (n,), the first tokens of a window that repeat the one before it
and have no loss. Only a window that reaches the end of its text ends with EOD.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints, expand
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.foreign import contract
from jaxdata.dataset.foreign.contract import FlatPart, ForeignFormat, ForeignWriter, ReadOptions

_MAGIC = b"GPTS"
_HEADER = struct.Struct("<4sIII")
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


def _read(prefix: Path, _: ReadOptions) -> FlatPart:
    pair = contract.open_pair(prefix, "gpts", _HEADER, _MAGIC, "GPT-Simple")
    tokens, path, data, (code, count) = pair
    if code not in _DTYPES:
        raise contract.damaged(path, f"dtype code {code}", "2 (uint16) or 4 (uint32)")
    contract.check_size(path, _HEADER.size + 10 * count + 8, f"{count:,} windows")
    edges = np.frombuffer(data, "<i8", count + 1, _HEADER.size)
    lengths, item, total = contract.gaps(edges, path), _DTYPES[code].itemsize, int(edges[-1])
    contract.check_size(tokens, total * item, f"{total:,} tokens of {item} bytes, says the .idx")
    context = np.frombuffer(data, "<u2", count, _HEADER.size + 8 * count + 8)
    return FlatPart(tokens, _DTYPES[code], lengths, edges[:-1], item, context=context)


class _Writer(ForeignWriter):
    holds_masks = True

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        self._context = np.zeros(len(self.lengths), np.uint16)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.documents.dtype.newbyteorder("<")

    def add_masks(self, first: int, counts: Ints, mask: NDArray[np.uint8]) -> None:
        """Count masked tokens, which all have to come first in their document."""
        owner, place = expand(counts)
        hidden = np.bincount(owner, mask == 0, len(counts)).astype(np.int64)
        wrong = (mask > 0) != (place >= hidden[owner])
        wrong |= hidden[owner] > 65_535
        if wrong.any():
            raise InputError(
                f"{self.called(first + int(owner[wrong.argmax()]))} masks other tokens than up to "
                "65,535 leading ones: all that GPT-Simple's files can hold"
            )
        self._context[first : first + len(counts)] = hidden

    def index(self) -> Iterator[bytes]:
        yield _HEADER.pack(_MAGIC, 1, self.dtype.itemsize, len(self.lengths))
        yield bytes(8)
        yield np.cumsum(self.lengths, dtype=np.int64).astype("<i8").tobytes()
        yield self._context.astype("<u2").tobytes()


FORMAT = ForeignFormat("gpts", suffix=".idx", read=_read, writer=_Writer)
