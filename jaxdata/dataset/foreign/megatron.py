"""Megatron-Core's pair of files: `PREFIX.bin`, tokens end to end, and `PREFIX.idx`.

The index, little-endian and without padding: a magic of 9 bytes, version (u64), dtype code (u8),
sequences S (u64), document boundaries D (u64); lengths i32 (S,), byte pointers i64 (S,), document
boundaries in sequences i64 (D,); and for multimodal files modes i8 (S,).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.dataset.foreign.contract import (
    FlatPart,
    ForeignFormat,
    ForeignWriter,
    ReadOptions,
    Written,
    check_file,
    check_size,
    damaged,
    gaps,
    numbers,
    open_map,
    read_header,
)
from jaxdata.storage.objects import AnyPath, any_path

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_NUMBERS_AT_ONCE = 2**20


@dataclass(frozen=True)
class _Index:
    path: AnyPath
    dtype: np.dtype[Any]
    lengths: NDArray[Any]
    pointers: NDArray[np.int64]
    boundaries: NDArray[np.int64]


def _read(prefix: AnyPath, options: ReadOptions) -> FlatPart:
    """The documents of a pair of files; or its sequences, of which a document may have several.

    Sequences are what Megatron's own GPT dataset takes for documents.
    """
    index = _read_index(options.index_of(prefix))
    tokens = any_path(f"{prefix}.bin")
    check_file(
        tokens, f"megatron:{prefix} is the two files {prefix.name}.bin and {prefix.name}.idx"
    )
    item = index.dtype.itemsize
    total = int(index.pointers[-1]) + int(index.lengths[-1]) * item if len(index.lengths) else 0
    check_size(tokens, total, f"{total // item:,} tokens of {item} bytes, says {index.path.name}")
    if options.sequences or _one_each(index.boundaries, len(index.lengths)):
        return FlatPart(tokens, index.dtype, index.lengths, index.pointers, 1)
    starts = np.append(index.pointers, total)[index.boundaries]
    lengths = gaps(
        starts // item,
        lambda at: damaged(index.path, f"document {at} ending before it begins", "rising ends"),
    )
    return FlatPart(tokens, index.dtype, lengths, starts[:-1], 1)


def _read_index(path: AnyPath) -> _Index:
    prefix = path.with_suffix("").name
    data = open_map(path, f"megatron:{prefix} is the two files {prefix}.bin and {prefix}.idx")
    code, count, documents = read_header(path, data, _HEADER, _MAGIC, "Megatron")
    if code not in _DTYPES:
        raise damaged(path, f"dtype code {code}", f"one of {', '.join(map(str, _DTYPES))}")
    size = _HEADER.size + 12 * count + 8 * documents
    modes = count if len(data) == size + count and count else 0
    check_size(path, size + modes, f"{count:,} sequences, {documents:,} document boundaries")
    at = _HEADER.size
    index = _Index(
        path=path,
        dtype=np.dtype(_DTYPES[code]),
        lengths=numbers(data, "<u4", at, count),
        pointers=numbers(data, "<i8", at + 4 * count, count),
        boundaries=numbers(data, "<i8", at + 12 * count, documents),
    )
    _check(index)
    return index


def _check(index: _Index) -> None:
    count, ends = len(index.lengths), index.boundaries
    if not len(ends) or ends[0] != 0 or ends[-1] != count:
        found = f"{ends[0]} to {ends[-1]}" if len(ends) else "none"
        raise damaged(index.path, f"document boundaries {found}", f"0 to {count} (its sequences)")
    if ends.min() < 0 or ends.max() > count:
        raise damaged(index.path, f"a document boundary {ends.max()}", f"0 to {count}")
    position = 0
    for start in range(0, count, _NUMBERS_AT_ONCE):
        position = _check_pointers(index, slice(start, start + _NUMBERS_AT_ONCE), position)


def _check_pointers(index: _Index, part: slice, position: int) -> int:
    """Lengths and byte pointers of some sequences, which begin at `position`; where they end."""
    lengths, pointers = index.lengths[part].astype(np.int64), index.pointers[part]
    if lengths.max() >= 2**31:
        at = int(lengths.argmax())
        found = f"a length of {lengths[at] - 2**32} at sequence {part.start + at}"
        raise damaged(index.path, found, "0 or more")
    ends = position + np.cumsum(lengths * index.dtype.itemsize)
    expected = np.append(position, ends[:-1])
    if not np.array_equal(pointers, expected):
        at = int(np.flatnonzero(pointers != expected)[0])
        raise damaged(
            index.path,
            f"the byte pointer {pointers[at]} at sequence {part.start + at}",
            f"{expected[at]}, the sum of the lengths before it",
        )
    return int(ends[-1])


def _one_each(boundaries: NDArray[np.int64], sequences: int) -> bool:
    """Whether every document is one sequence."""
    return len(boundaries) == sequences + 1 and all(
        np.array_equal(part, np.arange(start, start + len(part)))
        for start in range(0, len(boundaries), _NUMBERS_AT_ONCE)
        for part in [boundaries[start : start + _NUMBERS_AT_ONCE]]
    )


class _Writer(ForeignWriter):
    def __init__(self, documents: Written, eod_id: int | None) -> None:
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
        position = 0
        for start in range(0, count, _NUMBERS_AT_ONCE):
            sizes = lengths[start : start + _NUMBERS_AT_ONCE].astype(np.int64) * dtype.itemsize
            ends = position + np.cumsum(sizes)
            yield (ends - sizes).astype("<i8").tobytes()
            position = int(ends[-1])
        for start in range(0, count + 1, _NUMBERS_AT_ONCE):
            stop = min(start + _NUMBERS_AT_ONCE, count + 1)
            yield np.arange(start, stop).astype("<i8").tobytes()


FORMAT = ForeignFormat("megatron", suffix=".idx", read=_read, writer=_Writer)
