"""nanoGPT's flat file: uint16 tokens end to end, each document ending with EOD.

One pass over the file finds the ends of documents; they are kept beside it, as plans are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, digest
from jaxdata.base.progress import progress_bar
from jaxdata.base.ragged import AnyArray, Ints
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.foreign import contract
from jaxdata.dataset.foreign.contract import FlatPart, ForeignFormat, ForeignWriter, ReadOptions
from jaxdata.dataset.plan_cache import kept_table

_GPT2_EOD = 50256
_BYTES_AT_ONCE = 2**24
_DTYPE = np.dtype("<u2")


def _read(path: Path, options: ReadOptions) -> FlatPart:
    """The documents of one file; with an EOD of -1, all of the file is one."""
    eod_id = _GPT2_EOD if options.eod_id is None else options.eod_id
    contract.check_file(path, "nanogpt:PATH is a .bin file, or a folder of them")
    size = path.stat().st_size
    if size % _DTYPE.itemsize:
        raise contract.damaged(path, f"{size:,} bytes", "2 for each token")
    # Of a file that was rewritten the time is another one, even if the samples are the same.
    facts = [path.name, contract.sample(path), path.stat().st_mtime_ns, eod_id]
    edges = kept_table(
        options.beside,
        f"plans/{digest(facts)[:32]}.npy",
        lambda: _find_edges(path, eod_id),
        lambda found: _are_edges(found, size // _DTYPE.itemsize),
        most=None,
    )
    lengths = contract.gaps(edges, path)
    return FlatPart(path, _DTYPE, lengths, edges[:-1], _DTYPE.itemsize)


def _are_edges(edges: Ints, tokens: int) -> bool:
    """Whether documents of so many tokens can begin and end there."""
    rising = len(edges) > 0 and bool((edges[1:] >= edges[:-1]).all())
    return rising and (edges[0], edges[-1]) == (0, tokens)


def _find_edges(path: Path, eod_id: int) -> Ints:
    """The beginning, and the places after each EOD."""
    size, position, found = path.stat().st_size, 0, [np.zeros(1, np.int64)]
    total = size // _DTYPE.itemsize
    bar = progress_bar(f"finding documents in {path.name}", in_bytes=True)
    with bar as progress, path.open("rb") as file:
        while data := file.read(_BYTES_AT_ONCE):
            ends = np.flatnonzero(np.frombuffer(data, _DTYPE) == eod_id)
            found.append(ends + position // _DTYPE.itemsize + 1)
            position += len(data)
            progress(position, size)
    edges = np.concatenate(found)
    if total and len(edges) == 1 and eod_id >= 0:
        raise DatasetError(
            f"{path}: none of its {total:,} tokens is {eod_id}, the EOD that would end a "
            "document; pass the right one as eod_id=…, or eod_id=-1 if it is one document"
        )
    return edges if edges[-1] == total else np.append(edges, total)  # the last may lack its EOD


class _Writer(ForeignWriter):
    index_suffix = None

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
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

    def add(self, first: int, counts: Ints, tokens: AnyArray) -> None:
        super().add(first, counts, tokens)
        is_end = np.zeros(len(tokens), bool)
        is_end[np.cumsum(counts) - 1] = True
        if first + len(counts) == len(self.lengths):
            is_end[-1] = tokens[-1] == self._eod_id  # the last may lack it: the file ends there
        wrong = np.flatnonzero((tokens == self._eod_id) != is_end)
        if len(wrong):
            raise self._no_end(contract.owner_of(first, counts, int(wrong[0])))

    def _no_end(self, document: int) -> InputError:
        return InputError(
            f"{self.called(document)} does not end with its only EOD, "
            f"{self._eod_id}: nanoGPT's files separate documents by it; use another --eod-id, or "
            "export as megatron or gpts"
        )

    def index(self) -> Iterator[bytes]:
        return iter(())


FORMAT = ForeignFormat("nanogpt", suffix=".bin", read=_read, writer=_Writer, eod_id=_GPT2_EOD)
