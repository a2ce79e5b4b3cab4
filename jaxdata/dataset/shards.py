"""Writing one ArrayRecord file of documents, with checksums of its pages."""

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.manifest import ShardEntry
from jaxdata.dataset.records import RecordSpec, without_headers
from jaxdata.storage.contract import unwritable
from jaxdata.storage.pages.page_cache import PAGE_BYTES


def page_checksums(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32 of each page of a file; uint32 (pages,), the last page may be shorter.

    >>> page_checksums(np.frombuffer(b"123456789", np.uint8)).tolist() == [0xCBF43926]
    True
    """
    starts = range(0, len(data), PAGE_BYTES)
    found = [zlib.crc32(data[start : start + PAGE_BYTES].data) for start in starts]
    return np.array(found, np.uint32)


def page_count(shards: Iterable[ShardEntry]) -> int:
    """Pages of some shards."""
    return sum(-(-shard.bytes // PAGE_BYTES) for shard in shards)


WRITER_OPTIONS = "group_size:1,uncompressed"


class ShardWriter:
    """Writes documents as records to a path of `Store.create`; `entry` then describes the file."""

    def __init__(self, path: str | os.PathLike[str], spec: RecordSpec) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._path, self._spec = Path(path), spec
        self._writer: Any = ArrayRecordWriter(os.fspath(path), WRITER_OPTIONS)
        self.pages = np.empty(0, np.uint32)
        """checksums of the pages of the file, as soon as `entry` was asked for"""
        self._content = 0  # CRC-32 of all records: detects another file layout, not damage
        self._lengths = [np.empty(0, np.uint32)]

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document written so far."""
        self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0]

    def extend(
        self, documents: Sequence[NDArray[Any]], masks: Sequence[NDArray[Any]] | None = None
    ) -> None:
        """Append documents: their tokens with EOD and, where the source has masks, their masks."""
        lengths = np.fromiter(map(len, documents), np.uint32, len(documents))
        if not lengths.all():
            raise InputError("a document must have tokens: the empty text is one EOD")
        records = self._records(documents, self._spec.dtype, lengths)
        if masks is not None:
            own = self._records(masks, "uint8", lengths)
            records = [tokens + mask for tokens, mask in zip(records, own, strict=True)]
        self.extend_records(records, lengths)

    def extend_records(self, records: list[bytes], lengths: NDArray[np.uint32]) -> None:
        """Append documents of these lengths as the bytes of their records."""
        write = self._writer.write
        try:
            for record in records:
                write(record)
        except RuntimeError as error:
            raise unwritable(self._path, error) from error
        self._content = zlib.crc32(b"".join(records), self._content)
        self._lengths.append(lengths)

    def _records(
        self, arrays: Sequence[NDArray[Any]], dtype: str, lengths: NDArray[np.uint32]
    ) -> list[bytes]:
        """The bytes of arrays of these lengths, cut into records."""
        data = np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype, casting="unsafe")
        sizes = self._spec.record_lengths(lengths) * data.itemsize
        edges = [0, *np.cumsum(sizes).tolist()]
        whole = data.tobytes()
        return [whole[start:stop] for start, stop in pairwise(edges)]

    def close(self) -> None:
        """End the file; idempotent."""
        try:
            if self._writer.is_open():
                self._writer.close()
        except RuntimeError as error:
            raise unwritable(self._path, error) from error

    def entry(self, name: str) -> ShardEntry:
        """The manifest's entry of the closed file, under its final name."""
        data = np.fromfile(self._path, np.uint8)
        self._verify(data, name)
        self.pages = page_checksums(data)
        return ShardEntry(
            name=name,
            documents=len(self.lengths),
            records=int(self._spec.records(self.lengths).sum()),
            tokens=int(self.lengths.sum(dtype=np.int64)),
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )

    def _verify(self, data: NDArray[np.uint8], name: str) -> None:
        """Read every record back from its computed place."""
        content = 0
        stream = without_headers(data).data
        starts, sizes = self._spec.record_spans(self.lengths)
        for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
            content = zlib.crc32(stream[start:stop], content)
        if content != self._content:
            raise DatasetError(
                f"{name} is not as expected: the installed array_record writes another "
                "layout than the tested 0.8; please report its version"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
