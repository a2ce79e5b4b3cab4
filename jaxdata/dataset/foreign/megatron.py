"""Megatron-Core's pair of files: `PREFIX.bin`, tokens end to end, and `PREFIX.idx`.

The index, little-endian and without padding: a magic of 9 bytes, version (u64), dtype code (u8),
sequences S (u64), document boundaries D (u64); lengths i32 (S,), byte pointers i64 (S,), document
boundaries in sequences i64 (D,); and for multimodal files modes i8 (S,).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.foreign import contract
from jaxdata.dataset.foreign.contract import FlatPart, ForeignFormat, ForeignWriter, ReadOptions

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_NUMBERS_AT_ONCE = 2**20


def _read(prefix: Path, options: ReadOptions) -> FlatPart:
    """The documents of a pair of files; or its sequences, of which a document may have several.

    Sequences are what Megatron's own GPT dataset takes for documents.
    """
    pair = contract.open_pair(prefix, "megatron", _HEADER, _MAGIC, "Megatron")
    tokens, path, data, (code, count, documents) = pair
    if code not in _DTYPES:
        raise contract.damaged(path, f"dtype code {code}", f"one of {', '.join(map(str, _DTYPES))}")
    size, at = _HEADER.size + 12 * count + 8 * documents, _HEADER.size
    modes = count if len(data) == size + count else 0
    contract.check_size(path, size + modes, f"{count:,} sequences, {documents:,} boundaries")
    dtype = np.dtype(_DTYPES[code])
    lengths = np.frombuffer(data, "<u4", count, at)
    pointers = np.frombuffer(data, "<i8", count, at + 4 * count)
    boundaries = np.frombuffer(data, "<i8", documents, at + 12 * count)
    if not documents or boundaries[-1] != count:
        found = f"document boundaries up to {boundaries[-1:].tolist()}"
        raise contract.damaged(path, found, f"{count}, its sequences")
    sequences = contract.gaps(boundaries, path)
    total = _checked_end(path, lengths, pointers, dtype.itemsize)
    contract.check_size(tokens, total, f"{total // dtype.itemsize:,} tokens, says {path.name}")
    if options.sequences or (sequences == 1).all():
        return FlatPart(tokens, dtype, lengths, pointers, 1)
    edges = np.append(pointers, total)[boundaries]
    return FlatPart(tokens, dtype, contract.gaps(edges // dtype.itemsize, path), edges[:-1], 1)


def _checked_end(path: Path, lengths: NDArray[Any], pointers: NDArray[Any], item: int) -> int:
    """Where the last sequence ends, in bytes, if each begins where the one before it ends."""
    end = 0
    for start in range(0, len(lengths), _NUMBERS_AT_ONCE):
        part = slice(start, start + _NUMBERS_AT_ONCE)
        sizes = lengths[part].astype(np.int64) * item
        expected = end + np.cumsum(sizes) - sizes
        wrong = np.flatnonzero((pointers[part] != expected) | (lengths[part] >= 2**31))
        if len(wrong):
            at = wrong[0]
            found = f"the byte pointer {pointers[part][at]} at sequence {start + at}"
            right = f"{expected[at]}, the sum of the lengths before it, which are positive"
            raise contract.damaged(path, found, right)
        end = int(expected[-1] + sizes[-1])
    return end


class _Writer(ForeignWriter):
    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        longest = int(self.lengths.max(initial=0))
        if longest >= 2**31:
            raise InputError(f"a document of {longest:,} tokens: the format holds up to 2^31 - 1")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.documents.dtype.itemsize == 2 else "<i4")

    def index(self) -> Iterator[bytes]:
        """Every document is one sequence."""
        lengths, dtype, count = self.lengths, self.dtype, len(self.lengths)
        codes = {np.dtype(name): code for code, name in _DTYPES.items()}
        yield _HEADER.pack(_MAGIC, 1, codes[dtype], count, count + 1)
        yield lengths.astype("<i4").tobytes()
        sizes = lengths.astype(np.int64) * dtype.itemsize
        yield (np.cumsum(sizes) - sizes).astype("<i8").tobytes()
        yield np.arange(count + 1).astype("<i8").tobytes()


FORMAT = ForeignFormat("megatron", suffix=".idx", read=_read, writer=_Writer)
