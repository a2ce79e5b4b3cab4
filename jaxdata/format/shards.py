"""Writing one ArrayRecord file of documents, and proving that it lies as `records` says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.errors import DatasetError, InputError
from jaxdata.format.manifest import ShardEntry
from jaxdata.format.records import RecordLayout, without_headers
from jaxdata.format.storage import unwritable

__all__ = ["ShardWriter"]

WRITER_OPTIONS = "group_size:1,uncompressed"


class ShardWriter:
    """Write documents as records; `entry` then describes the file.

    Args:
        path: the file, as `Store.create` gives it.
        layout: how documents are cut into records.
    """

    def __init__(self, path: str | os.PathLike[str], layout: RecordLayout) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._path, self._layout = Path(path), layout
        self._writer: Any = ArrayRecordWriter(os.fspath(path), WRITER_OPTIONS)
        self._content = hashlib.sha256()
        self._lengths: list[int] = []

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document written so far."""
        return np.asarray(self._lengths, np.uint32)

    def add(self, tokens: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Append one document: its tokens with EOD and, where the source has masks, its mask."""
        array = np.asarray(tokens).astype(self._layout.dtype, copy=False)
        if not len(array):
            raise InputError("a document of no tokens cannot be stored: the empty text is one EOD")
        masks = None if mask is None else np.asarray(mask).astype(np.uint8, copy=False)
        for start in range(0, len(array), self._layout.record_tokens):
            part = slice(start, start + self._layout.record_tokens)
            self._write(array[part].tobytes() + (b"" if masks is None else masks[part].tobytes()))
        self._lengths.append(len(array))

    def _write(self, record: bytes) -> None:
        try:
            self._writer.write(record)
        except RuntimeError as error:
            raise unwritable(self._path, error) from error
        self._content.update(record)

    def close(self) -> None:
        """End the file; calling it again does nothing."""
        try:
            if self._writer.is_open():
                self._writer.close()
        except RuntimeError as error:
            raise unwritable(self._path, error) from error

    def entry(self, name: str) -> ShardEntry:
        """The manifest's description of the closed file, under the name it will have."""
        data = np.fromfile(self._path, np.uint8)
        self._verify(data, name)
        return ShardEntry(
            name=name,
            documents=len(self._lengths),
            records=int(self._layout.records(self._lengths).sum()),
            tokens=sum(self._lengths),
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )

    def _verify(self, data: NDArray[np.uint8], name: str) -> None:
        """Read every record back from where the arithmetic places it."""
        content = hashlib.sha256()
        stream = without_headers(data)
        starts, sizes = self._layout.record_spans(self._lengths)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            content.update(stream[start : start + size].data)
        if content.digest() != self._content.digest():
            raise DatasetError(
                f"{name} does not lie as expected: the installed array_record writes another "
                "layout than the tested 0.8; please report its version"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
