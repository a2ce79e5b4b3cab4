"""Writing one ArrayRecord file of documents, and proving that it lies as `records` says."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from itertools import pairwise
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
        self._content = 0  # CRC-32 of all records: against another layout, not against damage
        self._lengths = [np.empty(0, np.uint32)]

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document written so far."""
        self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0]

    def add(self, tokens: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Append one document: its tokens with EOD and, where the source has masks, its mask."""
        self.extend([np.asarray(tokens)], None if mask is None else [np.asarray(mask)])

    def extend(
        self, documents: Sequence[NDArray[Any]], masks: Sequence[NDArray[Any]] | None = None
    ) -> None:
        """Append several documents, which costs less than one by one."""
        lengths = np.fromiter(map(len, documents), np.uint32, len(documents))
        if not lengths.all():
            raise InputError("a document of no tokens cannot be stored: the empty text is one EOD")
        records = self._records(documents, self._layout.dtype, lengths)
        if masks is not None:
            own = self._records(masks, "uint8", lengths)
            records = [tokens + mask for tokens, mask in zip(records, own, strict=True)]
        self._write(records)
        self._lengths.append(lengths)

    def _records(
        self, arrays: Sequence[NDArray[Any]], dtype: str, lengths: NDArray[np.uint32]
    ) -> list[bytes]:
        """The bytes of arrays of these lengths, cut into records."""
        data = np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype, casting="unsafe")
        sizes = self._layout.record_lengths(lengths) * data.itemsize
        edges = [0, *np.cumsum(sizes).tolist()]
        whole = data.tobytes()
        return [whole[start:stop] for start, stop in pairwise(edges)]

    def _write(self, records: list[bytes]) -> None:
        write = self._writer.write
        try:
            for record in records:
                write(record)
        except RuntimeError as error:
            raise unwritable(self._path, error) from error
        self._content = zlib.crc32(b"".join(records), self._content)

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
            documents=len(self.lengths),
            records=int(self._layout.records(self.lengths).sum()),
            tokens=int(self.lengths.sum(dtype=np.int64)),
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )

    def _verify(self, data: NDArray[np.uint8], name: str) -> None:
        """Read every record back from where the arithmetic places it."""
        content = 0
        stream = without_headers(data).data
        starts, sizes = self._layout.record_spans(self.lengths)
        for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
            content = zlib.crc32(stream[start:stop], content)
        if content != self._content:
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
