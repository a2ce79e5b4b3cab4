"""Where documents lie: the index of a source (lengths, places in shards, origins), and its shards.

A shard is one ArrayRecord file of documents, written with checksums of its pages.
"""

import hashlib
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import Ints
from jaxdata.dataset.manifest import SIDE_COLUMNS, ShardEntry, SourceEntry, ViewEntry
from jaxdata.dataset.records import STREAM_START, RecordSpec, without_headers
from jaxdata.storage import Store, zarr
from jaxdata.storage.contract import Kind, unwritable
from jaxdata.storage.pages.page_cache import PAGE_BYTES


class Member(NamedTuple):
    """A record of a file in an archive."""

    name: str
    """of the file"""
    counted: str
    """"line" or "piece" (from 1), or "row" (from 0)"""
    number: int

    def after(self, records: int) -> "Member":
        """The record that follows after `records` more."""
        return self._replace(number=self.number + records)

    def columns(self, file: int, row: int) -> dict[str, NDArray[Any]]:
        """An entry of the columns of members: where the record is in an input file.

        Rows of that file that follow are of the same member, until there is another entry.
        """
        line = json.dumps({"name": self.name, self.counted: self.number}).encode() + b"\n"
        return {
            "member": np.frombuffer(line, np.uint8),
            "member_file": np.array([file], np.uint32),
            "member_row": np.array([row], np.uint64),
        }


def find_member(column: Callable[[str], NDArray[Any]], file: int, row: int) -> Member | None:
    """The member that holds a row of a file, and the row's number there; None outside archives."""
    files, rows = column("member_file"), column("member_row")
    first, stop = (int(np.searchsorted(files, file, side)) for side in ("left", "right"))
    at = first + int(np.searchsorted(rows[first:stop], row, "right")) - 1
    if at < first:
        return None
    (line,) = lines_of_json(column("member"), column("member_end"), at, at + 1)
    (_, name), (counted, number) = line.items()
    return Member(str(name), counted, int(number)).after(row - int(rows[at]))


def line_ends(lines: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Where each line of a column of lines ends, with its newline."""
    return (np.flatnonzero(lines == ord("\n")) + 1).astype(np.uint64)


def lines_of_json(
    lines: NDArray[np.uint8], ends: NDArray[np.uint64], first: int, stop: int
) -> list[dict[str, Any]]:
    """Objects `[first, stop)` of a column of JSON, one a line; raises ValueError if it is none."""
    a, b = int(ends[first - 1]) if first else 0, int(ends[stop - 1]) if stop > first else 0
    found = lines[a:b].tobytes().split(b"\n")[: stop - first]
    objects = [json.loads(line) for line in found]
    if len(objects) != stop - first or not all(isinstance(each, dict) for each in objects):
        raise ValueError(f"{len(objects)} lines, for {stop - first} documents, or no objects")
    return objects


Kinds = dict[str, Kind]
"""Name -> (dtype, entries) of columns; None if only the column itself says how many."""


Arrays = Mapping[str, NDArray[Any]]
"""Columns by name."""


class Columns(ABC):
    """The columns of an index, or of a view; one is read when it is first used."""

    store: Store
    entry: SourceEntry | ViewEntry
    """what the manifest says of them"""

    @property
    @abstractmethod
    def columns(self) -> Kinds:
        """All that there are."""

    @abstractmethod
    def file(self, column: str) -> str:
        """The folder of the chunks of a column."""

    def has(self, column: str) -> bool:
        """Whether there is a column of this name."""
        return column in self.entry.checksums

    def column(self, name: str) -> NDArray[Any]:
        """A column by its name."""
        if name not in self._read:
            sha256 = self.entry.checksums[name]
            self._read[name] = self.store.read_array(self.file(name), self.columns[name], sha256)
        return self._read[name]

    @cached_property
    def _read(self) -> dict[str, NDArray[Any]]:
        return {}


def checksum(column: NDArray[Any]) -> str:
    """The sha256 that a column has when it is written."""
    little = column.dtype.newbyteorder("<")
    return hashlib.sha256(np.ascontiguousarray(column, little).data).hexdigest()


def write_columns(store: Store, folder: str, columns: Arrays) -> dict[str, str]:
    """Write arrays below a folder; returns their checksums."""
    return {name: zarr.write(store, f"{folder}/{name}", each) for name, each in columns.items()}


ANCHOR_EVERY = 8
HASH_COLUMNS = {"exact_hash": 2, "band_hash": 14}
"""Hashes of each document's text that a conversion may keep, and how many uint64 a document has."""
DELETIONS = ("deleted", "blanked")
"""Numbers of documents that were deleted: before a generation, and since. Only if there are any."""
_CHUNK_DOCUMENTS = ANCHOR_EVERY * 2**17
_STEPS = np.arange(ANCHOR_EVERY - 1)[:, None]


def anchors(lengths: NDArray[np.uint32], spec: RecordSpec) -> NDArray[np.uint64]:
    """Stream bytes before every `ANCHOR_EVERY`-th document of `lengths` tokens, uint64.

    >>> anchors(np.full(9, 100, np.uint32), RecordSpec("uint16"))
    array([   0, 1952], dtype=uint64)
    """
    found, before = [np.empty(0, np.uint64)], 0
    for start in range(0, len(lengths), _CHUNK_DOCUMENTS):  # their bytes are never all in memory
        ends = before + np.cumsum(spec.stream_bytes(lengths[start : start + _CHUNK_DOCUMENTS]))
        found.append(np.append(before, ends[:-1])[::ANCHOR_EVERY].astype(np.uint64))
        before = int(ends[-1])
    return np.concatenate(found)


def write_index(
    store: Store, folder: str, columns: Arrays, spec: RecordSpec, sides: Mapping[str, str]
) -> dict[str, str]:
    """Write the columns of one source, and those that follow from them; returns their checksums.

    Args:
        store: the dataset.
        folder: `<split>/<source>/index`; another one each time that documents are appended.
        columns: `length`, uint32, `origin_file` (number in the manifest's list of inputs), uint32,
            and `origin_row` (line from 1 or row from 0 in that file), uint64, of shape (documents,)
            in the order of the shards; `page`, the checksums of the pages of all shards, uint32
            (pages,), and `NAME.page` those of a side array. Where there are any: `kept`, a line of
            JSON for each document with its kept fields, uint8 (bytes,); those of each `Member`, if
            documents came from archives; and of `HASH_COLUMNS`.
        spec: how documents are cut into records.
        sides: the dtype of each side array.
    """
    lengths = columns["length"]
    found = {**columns, "anchor": anchors(lengths, spec)}
    for name in {"kept", "member"} & columns.keys():
        found[f"{name}_end"] = line_ends(columns[name])
    for name, dtype in sides.items():
        found[f"{name}.anchor"] = anchors(lengths, spec.of_side(dtype))
    return write_columns(store, folder, found)


@dataclass(frozen=True)
class SourceIndex(Columns):
    """The index of one source, or of one of its side arrays as if its values were the tokens."""

    store: Store
    name: str
    """`"<split>/<source>"`"""
    entry: SourceEntry
    spec: RecordSpec
    prefix: str = ""
    """before the names of the columns that a side array has of its own"""

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceIndex, (self.store, self.name, self.entry, self.spec, self.prefix)

    @cached_property
    def sides(self) -> "dict[str, SourceIndex]":
        """The index of each side array: lengths are the source's, places its own."""
        found = dict[str, SourceIndex]()
        for name, side in self.entry.side.items():
            entry, spec = self.entry.of_side(name), self.spec.of_side(side.dtype)
            found[name] = replace(self, entry=entry, spec=spec, prefix=f"{name}.")
        return found

    @cached_property
    def stored(self) -> NDArray[np.uint32]:
        """Tokens of each document in the shards, with EOD, uint32 (documents,)."""
        return self.column("length")

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document with EOD, 0 of a deleted one; uint32 (documents,)."""
        if not len(self.deleted):
            return self.stored
        lengths = np.array(np.asarray(self.stored))
        lengths[self.deleted] = 0
        return lengths

    @cached_property
    def deleted(self) -> NDArray[np.uint64]:
        """Numbers of the documents that this generation lacks, ascending; their tokens are 0."""
        return self._numbers("deleted")

    @cached_property
    def blanked(self) -> NDArray[np.uint64]:
        """Those that were deleted since, ascending: their tokens are 0, their lengths are not."""
        return self._numbers("blanked")

    def _numbers(self, column: str) -> NDArray[np.uint64]:
        """A column of document numbers; empty if there is none."""
        found = self.column(column) if self.has(column) else np.empty(0, np.uint64)
        if len(found) and (found[-1] >= self.entry.documents or (found[1:] <= found[:-1]).any()):
            raise self.other()
        return found

    def check_lengths(self) -> None:
        """Compare lengths, anchors and the numbers of deleted documents with their checksums.

        Raises:
            DatasetError: they are not those that were written.
        """
        gone = self.stored[self.deleted]
        same = int(self.stored.sum(dtype=np.int64)) == self.entry.tokens
        same &= len(gone) == self.entry.deleted.documents
        same &= int(gone.sum(dtype=np.int64)) == self.entry.deleted.tokens
        for name in filter(self.has, ("length", "anchor", *DELETIONS)):
            same &= self.entry.checksums[name] == checksum(self.column(name))
        if not same:
            raise self.other()

    def other(self) -> DatasetError:
        """The error for lengths and anchors that are not those that were written."""
        return DatasetError(
            f"{self.store.url}: the index of {self.name} is not what was written: jaxdata verify "
            f"{self.store.url} names what is damaged"
        )

    def origin(self, document: int) -> tuple[str, int, Member | None]:
        """The input file of a document, its line (from 1) or row (from 0) there, and in an archive.

        All files of an archive are counted through; the member says where it is in one of them.
        """
        with self._checked(document):
            file, row = (int(self.column(f"origin_{of}")[document]) for of in ("file", "row"))
            member = find_member(self.column, file, row) if self.has("member") else None
            return self.entry.inputs[file], row, member

    @contextmanager
    def _checked(self, document: int) -> Iterator[None]:
        """Turn errors of damaged columns, which are not verified on opening, into DatasetError."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DatasetError(
                f"{self.store.url}: the index of {self.name} is damaged at document {document} "
                f"({error!r}); jaxdata verify names the file and the remedy"
            ) from error

    def kept(self, first: int, stop: int) -> list[dict[str, Any]]:
        """The kept fields of documents `[first, stop)`, empty where none were kept."""
        if not self.has("kept"):
            return [{}] * (stop - first)
        with self._checked(first):
            return lines_of_json(self.column("kept"), self.column("kept_end"), first, stop)

    @property
    def hashed(self) -> list[str]:
        """Those of `HASH_COLUMNS` that were kept."""
        return [name for name in HASH_COLUMNS if self.has(name)]

    def hashes(self, column: str) -> NDArray[np.uint64]:
        """The hashes of each document in one of them, uint64 (documents, n)."""
        return self.column(column).reshape(-1, HASH_COLUMNS[column])

    def locate(self, document: Ints) -> tuple[Ints, Ints]:
        """(shard number, stream offset of the first chunk) of documents; int64 (n,) each."""
        shard = np.searchsorted(self.shard_starts, document, side="right") - 1
        stream = self._bytes_before(document) - self._before_shards(shard) + STREAM_START
        if stream.min(initial=STREAM_START) < STREAM_START:
            with self._checked(int(document[stream.argmin()])):
                raise ValueError("its anchors fall")
        return shard, stream

    @cached_property
    def shard_stops(self) -> Ints:
        """The document after the last of each shard."""
        return np.cumsum([shard.documents for shard in self.entry.shards])

    @cached_property
    def shard_starts(self) -> Ints:
        """First document of each shard."""
        return np.append(0, self.shard_stops)[:-1]

    def _before_shards(self, shard: Ints) -> Ints:
        """Stream bytes of all documents before some shards, looked up once."""
        known = self._shard_bytes
        new = np.unique(shard[known[shard] < 0])
        if len(new):
            known[new] = self._bytes_before(self.shard_starts[new])
        return known[shard]

    @cached_property
    def _shard_bytes(self) -> Ints:
        """Those that are known, of each shard; -1 for the others."""
        return np.full(len(self.entry.shards), -1)

    def _bytes_before(self, document: Ints) -> Ints:
        """Stream bytes of all documents of the source before each of `document`."""
        anchor = document // ANCHOR_EVERY
        first = anchor * ANCHOR_EVERY
        # (steps, documents): numpy is slow at sums over so short a last axis.
        lengths = self.stored.take(first + _STEPS, mode="clip")
        between = self.spec.stream_bytes(lengths) * (document - first > _STEPS)
        return np.asarray(
            self.column("anchor")[anchor].astype(np.int64) + between.sum(axis=0), np.int64
        )

    @property
    def columns(self) -> Kinds:
        """See `Columns`."""
        documents = self.entry.documents
        known: Kinds = {
            "length": (np.uint32, documents),
            "anchor": (np.uint64, -(-documents // ANCHOR_EVERY)),
            "origin_file": (np.uint32, documents),
            "origin_row": (np.uint64, documents),
            "page": (np.uint32, page_count(self.entry.shards)),
            "kept": (np.uint8, None),
            "kept_end": (np.uint64, documents),
            "member": (np.uint8, None),
            "member_end": (np.uint64, None),
            "member_file": (np.uint32, None),
            "member_row": (np.uint64, None),
            **{name: (np.uint64, each * documents) for name, each in HASH_COLUMNS.items()},
            **dict.fromkeys(DELETIONS, (np.uint64, None)),
        }
        for name, side in self.entry.side.items():
            known[f"{name}.anchor"] = known["anchor"]
            known[f"{name}.page"] = (np.uint32, page_count(side.shards))
        return {name: known[name] for name in known if self.has(name)}

    def file(self, column: str) -> str:
        """See `Columns`."""
        own = self.prefix if column in SIDE_COLUMNS else ""
        return f"{self.name}/{self.entry.index}/{own}{column}"


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
