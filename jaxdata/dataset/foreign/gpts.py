"""GPT-Simple's pair of files: `PREFIX.bin`, windows of tokens end to end, and `PREFIX.idx`.

The index, little-endian: `GPTS`, version, dtype code (2: u16, 4: u32) and windows n (u32 each);
token offsets i64 (n + 1,); and u16 (n,), the first tokens of a window that repeat the one before it
and have no loss. Only a window that reaches the end of its text ends with EOD.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.dataset.foreign.contract import (
    FlatPart,
    ForeignFormat,
    ForeignWriter,
    Ranges,
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

_MAGIC = b"GPTS"
_HEADER = struct.Struct("<4sIII")
_DTYPES = {2: "<u2", 4: "<u4"}


def _read(prefix: AnyPath, options: ReadOptions) -> FlatPart:
    path, tokens = options.index_of(prefix), any_path(f"{prefix}.bin")
    pair = f"gpts:{prefix} is the two files {prefix.name}.bin and {prefix.name}.idx"
    data = open_map(path, pair)
    check_file(tokens, pair)
    code, count = read_header(path, data, _HEADER, _MAGIC, "GPT-Simple")
    if code not in _DTYPES:
        raise damaged(path, f"dtype code {code}", "2 (uint16) or 4 (uint32)")
    check_size(path, _HEADER.size + 10 * count + 8, f"{count:,} windows")
    offsets = numbers(data, "<i8", _HEADER.size, count + 1)
    if offsets[0]:
        raise damaged(path, f"a first offset of {offsets[0]}", "0")
    lengths = gaps(
        offsets, lambda at: damaged(path, f"window {at} ending before it begins", "rising offsets")
    )
    dtype, total = np.dtype(_DTYPES[code]), int(offsets[-1])
    check_size(
        tokens, total * dtype.itemsize, f"{total:,} tokens of {dtype.itemsize} bytes, says the .idx"
    )
    context = numbers(data, "<u2", _HEADER.size + 8 * count + 8, count)
    return FlatPart(tokens, dtype, lengths, offsets[:-1], dtype.itemsize, context=context)


class _Writer(ForeignWriter):
    holds_masks = True

    def __init__(self, documents: Written, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        self._context = np.zeros(len(self.lengths), np.uint16)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.documents.dtype.newbyteorder("<")

    def add_masks(self, ranges: Ranges, mask: NDArray[np.uint8]) -> None:
        """Count masked tokens, which all have to come first in their document."""
        owner = np.repeat(np.arange(len(ranges.tokens)), ranges.tokens)
        hidden = np.bincount(owner, mask == 0, len(ranges.tokens)).astype(np.int64)
        before = np.cumsum(ranges.tokens) - ranges.tokens
        expected = np.arange(len(mask)) - before[owner] >= hidden[owner]
        context = self._context[ranges.document].astype(np.int64) + hidden
        wrong = (hidden > 0) & (context != ranges.start + hidden) | (context > 65_535)
        wrong[owner[(mask > 0) != expected]] = True
        if wrong.any():
            raise InputError(
                f"{self.called(ranges.document[wrong.argmax()])} masks other "
                "tokens than up to 65,535 leading ones: all that GPT-Simple's files can hold"
            )
        self._context[ranges.document] = context

    def index(self) -> Iterator[bytes]:
        codes = {np.dtype(name): code for code, name in _DTYPES.items()}
        yield _HEADER.pack(_MAGIC, 1, codes[self.dtype], len(self.lengths))
        yield bytes(8)
        yield np.cumsum(self.lengths, dtype=np.int64).astype("<i8").tobytes()
        yield self._context.astype("<u2").tobytes()


FORMAT = ForeignFormat("gpts", suffix=".idx", read=_read, writer=_Writer)
