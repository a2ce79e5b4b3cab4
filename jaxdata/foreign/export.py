"""Documents of any source written as the files of another tool, with little memory."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError, log
from jaxdata.base.numbers import validated
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import even_cuts
from jaxdata.dataset.array_documents import as_documents
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.foreign import ForeignWriter, writers
from jaxdata.storage import Store, open_store
from jaxdata.storage.contract import plain_path

_TOKENS_AT_ONCE = 2**21


@dataclass(frozen=True)
class ExportReport:
    """The files that were written, and their counts."""

    files: list[str]
    documents: int
    tokens: int
    bytes: int


@validated
def export(
    source: Any,
    output: str | os.PathLike[str],
    *,
    format: str,
    eod_id: int | None = None,
    progress: Advance | None = None,
) -> ExportReport:
    """Write the documents of a source as another tool's files; they read back the same.

    Side arrays are left behind, with a warning: no other format holds them.

    Args:
        source: what can be packed, such as `dataset.source("train", "web")`.
        output: for `megatron` and `gpts` the path or URL without `.bin` and `.idx`, else the file.
        format: `"megatron"`, `"gpts"` (GPT-Simple) or `"nanogpt"`.
        eod_id: the token that ends documents; nanoGPT separates them by it.
        progress: called with (tokens written, all tokens).

    Raises:
        InputError: the file exists already, or the format cannot hold the documents: loss masks
            (gpts only holds masked first tokens), ids above 65,535 or documents without EOD
            (nanogpt).

    >>> import jaxdata, tempfile
    >>> docs = jaxdata.ArrayDocuments([[5, 6, 0], [7, 0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = export(docs, f"{folder}/mine", format="megatron")
    ...     source = jaxdata.open_dataset(f"megatron:{folder}/mine").source("train", "mine")
    ...     first = source[0]["tokens"].tolist()
    >>> done.documents, done.tokens, first
    (2, 5, [5, 6, 0])
    """
    known = writers()
    if format not in known:
        raise InputError(f"format={format!r}: expected {' | '.join(known)}")
    documents, given = as_documents(source), plain_path(output)
    if left := documents.side:
        log.warning("%s: side arrays are not exported (%s)", documents.name, ", ".join(left))
    writer = known[format](documents, eod_id)
    where, name = os.path.split(given)
    folder, suffix = open_store(where or "."), writer.index_suffix
    names = [name] if suffix is None else [f"{name}.bin", f"{name}{suffix}"]
    _check_absent(folder, names)
    folder.sweep(below=False)
    total = int(documents.lengths.sum(dtype=np.int64))
    # Each appears when complete, the index last; nothing of another process is overwritten.
    with ExitStack() as outer:
        paths = [outer.enter_context(_new(folder, [name]).create(name)) for name in names[1:]]
        with _new(folder, names).create(names[0]) as path, path.open("wb") as file:
            done = 0
            for tokens in _parts(documents, writer):
                file.write(tokens.astype(writer.dtype, copy=False).data)
                done += len(tokens)
                if progress:
                    progress(done, total)
            size = file.tell()
        for index in paths:
            with index.open("wb") as file:
                file.writelines(writer.index())
                size += file.tell()
    files = [f"{folder.url}/{name}" for name in names]
    return ExportReport(files, documents=len(documents), tokens=total, bytes=size)


def _new(folder: Store, names: list[str]) -> Store:
    """The folder, to which nothing is written if one of the names is there then."""
    return folder.fenced(partial(_check_absent, folder, names))


def _check_absent(folder: Store, names: list[str]) -> None:
    for name in names:
        if folder.exists(name):
            raise InputError(
                f"{folder.url}/{name} exists already: choose another output, or delete it if it is "
                "left of an export that was killed"
            )


def _parts(documents: Documents, writer: ForeignWriter) -> Iterator[NDArray[Any]]:
    """The tokens of all documents, a few million at a time, once the writer has seen them."""
    for first, stop, _ in even_cuts(documents.lengths, _TOKENS_AT_ONCE):
        numbers = np.arange(first, stop)
        tokens, counts = documents.end_to_end(numbers)
        writer.add(first, counts, tokens)
        if documents.masked:
            masks = documents.masks(numbers, np.zeros_like(counts), counts)
            writer.add_masks(first, counts, masks.views.array(np.uint8))
        yield tokens
