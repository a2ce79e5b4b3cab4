"""Documents written as the files of another tool, from any source, with little memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.format.storage import LocalStore
from jaxdata.make.exported import FORMATS, Exported, Ranges
from jaxdata.progress import Advance
from jaxdata.rows.documents import as_documents

__all__ = ["ExportReport", "export"]

_TOKENS_AT_ONCE = 2**21
_DOCUMENTS_AT_ONCE = 2**16


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    files: list[str]
    documents: int
    tokens: int
    bytes: int


def export(
    source: Any,
    output: str | os.PathLike[str],
    *,
    format: str,
    eod_id: int | None = None,
    progress: Advance | None = None,
) -> ExportReport:
    """Write the documents of a source as another tool's files; they read back the same.

    Args:
        source: what can be packed, such as `dataset.source("train", "web")`.
        output: for `megatron` and `gpts` what comes before `.bin` and `.idx`, else the file.
        format: `"megatron"`, `"gpts"` (GPT-Simple) or `"nanogpt"`.
        eod_id: the token that ends documents, which nanoGPT tells them by.
        progress: called with tokens written, and in all.

    Raises:
        InputError: there is such a file already, or the format cannot hold what is in the
            documents: other loss masks than first tokens (gpts; none in the others), ids above
            65,535 or documents without EOD (nanogpt).

    >>> import jaxdata, tempfile
    >>> docs = jaxdata.ArrayDocuments([[5, 6, 0], [7, 0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = export(docs, f"{folder}/mine", format="megatron")
    ...     source = jaxdata.open_dataset(f"megatron:{folder}/mine").source("train", "mine")
    ...     first = source[0]["tokens"].tolist()
    >>> done.documents, done.tokens, first
    (2, 5, [5, 6, 0])
    """
    if format not in FORMATS:
        raise InputError(f"format={format!r}: expected {' | '.join(FORMATS)}")
    exported = FORMATS[format](as_documents(source), eod_id)
    path = Path(output).expanduser()
    suffix = exported.index_suffix
    names = [path.name] if suffix is None else [f"{path.name}.bin", f"{path.name}{suffix}"]
    folder = LocalStore(path.parent)
    for name in names:
        if (path.parent / name).exists():
            raise InputError(f"{path.parent / name} exists already: choose another output")
    _publish(exported, folder, names, progress)
    return ExportReport(
        files=[str(path.parent / name) for name in names],
        documents=len(exported.documents),
        tokens=int(exported.lengths.sum(dtype=np.int64)),
        bytes=sum((path.parent / name).stat().st_size for name in names),
    )


def _publish(
    exported: Exported, folder: LocalStore, names: list[str], progress: Advance | None
) -> None:
    """Write the files; each appears when it is whole, the index last."""
    if len(names) == 1:
        with folder.create(names[0]) as tokens, tokens.open("wb") as file:
            _write_tokens(exported, file, progress)
        return
    with folder.create(names[1]) as index:
        with folder.create(names[0]) as tokens, tokens.open("wb") as file:
            _write_tokens(exported, file, progress)
        with index.open("wb") as file:
            file.writelines(exported.index())


def _write_tokens(exported: Exported, file: BinaryIO, progress: Advance | None) -> None:
    documents, done = exported.documents, 0
    total = int(exported.lengths.sum(dtype=np.int64))
    for ranges in _ranges(exported.lengths):
        joined = documents.tokens(*ranges).views.join()
        tokens = np.frombuffer(joined, documents.dtype.newbyteorder("<"))
        exported.add(ranges, tokens)
        file.write(tokens.astype(exported.dtype, copy=False).data)
        done += len(tokens)
        if progress:
            progress(done, total)


def _ranges(lengths: NDArray[Any]) -> Iterator[Ranges]:
    """All documents in order, some tokens at a time; a long one in several ranges."""
    first = 0
    while first < len(lengths):
        some = lengths[first : first + _DOCUMENTS_AT_ONCE].astype(np.int64)
        fitting = int(np.searchsorted(np.cumsum(some), _TOKENS_AT_ONCE, side="right"))
        if not fitting:
            yield from _long(first, int(some[0]))
        else:
            places = np.arange(first, first + fitting)
            yield Ranges(places, np.zeros_like(places), some[:fitting])
        first += max(fitting, 1)


def _long(document: int, length: int) -> Iterator[Ranges]:
    for start in range(0, length, _TOKENS_AT_ONCE):
        count = min(_TOKENS_AT_ONCE, length - start)
        yield Ranges(*(np.array([value]) for value in (document, start, count)))
