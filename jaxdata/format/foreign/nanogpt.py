"""nanoGPT's flat file: uint16 tokens end to end, each document ending with EOD.

Where the documents end is found once, in a pass over the file, and kept as u64 beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.foreign.files import damaged, gaps, numbers, open_map, sample
from jaxdata.format.foreign.layout import Part
from jaxdata.format.storage import LocalStore, kept_file, map_file
from jaxdata.progress import progress_bar

__all__ = ["GPT2_EOD", "read"]

GPT2_EOD = 50256
_BYTES_AT_ONCE = 2**24
_DTYPE = np.dtype("<u2")


def read(path: Path, *, eod_id: int = GPT2_EOD, beside: LocalStore) -> Part:
    """The documents of one file.

    Args:
        path: the file.
        eod_id: the token that ends documents; -1: all of the file is one.
        beside: where to keep the places of their ends, if it can be written.
    """
    open_map(path, "nanogpt:PATH is a .bin file, or a folder of them")
    size = path.stat().st_size
    if size % _DTYPE.itemsize:
        raise damaged(path, f"{size:,} bytes", "2 for each token")
    name = f"{path.name}-{_key(path, eod_id)}.ends"
    kept = kept_file(name, lambda file: _write_ends(path, eod_id, file), beside)
    data = map_file(kept)
    ends = np.append(np.int64(0), numbers(data, "<i8", 0, len(data) // 8))
    lengths = gaps(ends, lambda _: damaged(kept, "falling ends", "rising ones"))
    return Part(path, _DTYPE, lengths, ends[:-1], _DTYPE.itemsize)


def _key(path: Path, eod_id: int) -> str:
    """Changes when the file is written anew, even where the samples stay."""
    facts = f"{sample(path)} {path.stat().st_mtime_ns} {eod_id}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _write_ends(path: Path, eod_id: int, output: Path) -> None:
    total, last = path.stat().st_size // _DTYPE.itemsize, 0
    with output.open("wb") as file:
        for ends in _ends(path, eod_id):
            file.write(ends.astype("<i8").tobytes())
            last = int(ends[-1])
        if total and not last and eod_id >= 0:
            raise DatasetError(
                f"{path}: none of its {total:,} tokens is {eod_id}, the EOD that would end a "
                "document; give the right one with eod_id=…, or eod_id=-1 if it is one document"
            )
        if last < total:  # the last document lacks its EOD
            file.write(np.array([total], "<i8").tobytes())


def _ends(path: Path, eod_id: int) -> Iterator[NDArray[np.int64]]:
    """The places after each EOD, part by part."""
    size, position = path.stat().st_size, 0
    bar = progress_bar(f"finding documents in {path.name}", in_bytes=True)
    with bar as progress, path.open("rb") as file:
        while data := file.read(_BYTES_AT_ONCE):
            found = np.flatnonzero(np.frombuffer(data, _DTYPE) == eod_id)
            if len(found):
                yield found + (position // _DTYPE.itemsize + 1)
            position += len(data)
            progress(position, size)
