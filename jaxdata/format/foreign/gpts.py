"""GPT-Simple's pair of files: `PREFIX.bin`, windows of tokens end to end, and `PREFIX.idx`.

The index, little-endian: `GPTS`, version, dtype code (2: u16, 4: u32) and windows n (u32 each);
token offsets i64 (n + 1,); and u16 (n,), how many first tokens of a window repeat the one before
it, and have no loss. Only a window that reaches the end of its text ends with EOD.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.foreign.files import check_size, damaged, gaps, numbers, open_map
from jaxdata.format.foreign.layout import Part

__all__ = ["index_parts", "read"]

_MAGIC = b"GPTS"
_HEADER = struct.Struct("<4sIII")
_DTYPES = {2: "<u2", 4: "<u4"}


def read(prefix: Path) -> Part:
    """The windows of a pair of files.

    Args:
        prefix: the path without `.bin` and `.idx`.
    """
    path, tokens = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    pair = f"gpts:{prefix} is the two files {prefix.name}.bin and {prefix.name}.idx"
    data = open_map(path, pair)
    open_map(tokens, pair)
    if len(data) < _HEADER.size:
        raise damaged(path, f"{len(data)} bytes", f"a header of {_HEADER.size}")
    magic, version, code, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise damaged(path, f"{magic!r} at its beginning", f"{_MAGIC!r}, GPT-Simple's index")
    if version != 1:
        raise damaged(path, f"version {version}", "version 1")
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
    leads = numbers(data, "<u2", _HEADER.size + 8 * count + 8, count)
    return Part(tokens, dtype, lengths, offsets[:-1], dtype.itemsize, leads=leads)


def index_parts(
    lengths: NDArray[np.uint32], leads: NDArray[np.uint16], dtype: np.dtype[Any]
) -> Iterator[bytes]:
    """The bytes of an index, piece by piece."""
    codes = {np.dtype(name): code for code, name in _DTYPES.items()}
    yield _HEADER.pack(_MAGIC, 1, codes[dtype], len(lengths))
    yield bytes(8)
    yield np.cumsum(lengths, dtype=np.int64).astype("<i8").tobytes()
    yield leads.astype("<u2").tobytes()
