"""nanoGPT's flat file: uint16 tokens end to end, each document ending with EOD.

One pass over the file finds the ends of documents; they are kept as u64 beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.progress import progress_bar
from jaxdata.dataset.checksums import CHECKSUM_BYTES, ends_with_checksum
from jaxdata.dataset.foreign.contract import (
    FlatPart,
    ForeignFormat,
    ForeignWriter,
    Ranges,
    ReadOptions,
    Written,
    check_file,
    damaged,
    document_at,
    gaps,
    numbers,
    sample,
)
from jaxdata.storage.cached_files import cached_file
from jaxdata.storage.maps import map_file
from jaxdata.storage.objects import AnyPath

_GPT2_EOD = 50256
_BYTES_AT_ONCE = 2**24
_DTYPE = np.dtype("<u2")


def _read(path: AnyPath, options: ReadOptions) -> FlatPart:
    """The documents of one file; with an EOD of -1, all of the file is one."""
    eod_id = _GPT2_EOD if options.eod_id is None else options.eod_id
    check_file(path, "nanogpt:PATH is a .bin file, or a folder of them")
    size = path.stat().st_size
    if size % _DTYPE.itemsize:
        raise damaged(path, f"{size:,} bytes", "2 for each token")
    lengths, starts = cached_file(
        f"{path.name}-{_key(path, eod_id)}.ends",
        lambda file: _write_ends(path, eod_id, file),
        options.beside,
        lambda file: _decode(file, size // _DTYPE.itemsize),
    )
    return FlatPart(path, _DTYPE, lengths, starts, _DTYPE.itemsize)


def _decode(kept: Path, tokens: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Lengths and starts of the documents of so many tokens; None if their ends are damaged."""
    if kept.stat().st_size > 8 * tokens + CHECKSUM_BYTES:
        return None
    data = map_file(kept)
    if not ends_with_checksum([data]):
        return None
    data = data[:-CHECKSUM_BYTES]
    ends = np.append(np.int64(0), numbers(data, "<i8", 0, len(data) // 8))
    try:
        lengths = gaps(ends, lambda _: damaged(kept, "falling ends", "rising ones"))
    except DatasetError:
        return None
    return (lengths, ends[:-1]) if ends[-1] == tokens and not len(data) % 8 else None


def _key(path: AnyPath, eod_id: int) -> str:
    """Changes when the file is rewritten, even if the samples stay the same."""
    facts = f"{sample(path)} {path.stat().st_mtime_ns} {eod_id}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _write_ends(path: AnyPath, eod_id: int, output: Path) -> None:
    content = hashlib.sha256()
    with output.open("wb") as file:
        for ends in _all_ends(path, eod_id):
            data = ends.astype("<i8").tobytes()
            content.update(data)
            file.write(data)
        file.write(content.digest())


def _all_ends(path: AnyPath, eod_id: int) -> Iterator[NDArray[np.int64]]:
    total, last = path.stat().st_size // _DTYPE.itemsize, 0
    for ends in _ends(path, eod_id):
        yield ends
        last = int(ends[-1])
    if total and not last and eod_id >= 0:
        raise DatasetError(
            f"{path}: none of its {total:,} tokens is {eod_id}, the EOD that would end a "
            "document; pass the right one as eod_id=…, or eod_id=-1 if it is one document"
        )
    if last < total:  # the last document lacks its EOD
        yield np.array([total])


def _ends(path: AnyPath, eod_id: int) -> Iterator[NDArray[np.int64]]:
    """The places after each EOD, in chunks."""
    size, position = path.stat().st_size, 0
    bar = progress_bar(f"finding documents in {path.name}", in_bytes=True)
    with bar as progress, path.open("rb") as file:
        while data := file.read(_BYTES_AT_ONCE):
            found = np.flatnonzero(np.frombuffer(data, _DTYPE) == eod_id)
            if len(found):
                yield found + (position // _DTYPE.itemsize + 1)
            position += len(data)
            progress(position, size)


class _Writer(ForeignWriter):
    index_suffix = None

    def __init__(self, documents: Written, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        if eod_id is None:
            raise InputError(
                "nanoGPT's files separate documents by EOD: pass its id as --eod-id or eod_id="
            )
        if not self.lengths.all():
            raise self._no_end(int(np.argmin(self.lengths)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return _DTYPE

    def add(self, ranges: Ranges, tokens: NDArray[Any]) -> None:
        super().add(ranges, tokens)
        ends = np.cumsum(ranges.tokens) - 1
        lengths = self.lengths[ranges.document].astype(np.int64)
        whole = ranges.start + ranges.tokens == lengths
        is_end = np.zeros(len(tokens), bool)
        is_end[ends[whole]] = True
        if ranges.document[-1] == len(self.lengths) - 1 and tokens[-1] != self._eod_id:
            is_end[-1] = False  # the last document may lack it: the file ends there
        wrong = np.flatnonzero((tokens == self._eod_id) != is_end)
        if len(wrong):
            raise self._no_end(document_at(ranges, int(wrong[0])))

    def _no_end(self, document: int) -> InputError:
        return InputError(
            f"{self.called(document)} does not end with its only EOD, "
            f"{self._eod_id}: nanoGPT's files separate documents by it; use another --eod-id, or "
            "export as megatron or gpts"
        )

    def index(self) -> Iterator[bytes]:
        return iter(())


FORMAT = ForeignFormat("nanogpt", suffix=".bin", read=_read, writer=_Writer, eod_id=_GPT2_EOD)
