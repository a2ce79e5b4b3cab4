"""The index of a source: document lengths, where documents lie, and where they came from.

Lengths alone plan any epoch. Places need no offset a document: one stream offset for every
`ANCHOR_EVERY` documents is stored, the rest follows from the lengths between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.members import COLUMNS, Member, find_member
from jaxdata.format.records import STREAM_START, RecordLayout
from jaxdata.format.storage import Store

__all__ = ["ANCHOR_EVERY", "SourceIndex", "anchor_pieces", "anchors", "write_index"]

ANCHOR_EVERY = 8
_PIECE = 2**26
_PIECE_DOCUMENTS = ANCHOR_EVERY * 2**17
_STEPS = np.arange(ANCHOR_EVERY - 1)[:, None]


def anchors(lengths: NDArray[np.uint32], layout: RecordLayout) -> NDArray[np.uint64]:
    """Stream bytes before every `ANCHOR_EVERY`-th document of `lengths` tokens, uint64.

    >>> anchors(np.full(9, 100, np.uint32), RecordLayout("uint16"))
    array([   0, 1952], dtype=uint64)
    """
    return np.concatenate([np.empty(0, np.uint64), *anchor_pieces(lengths, layout)])


def anchor_pieces(
    lengths: NDArray[np.uint32], layout: RecordLayout
) -> Iterator[NDArray[np.uint64]]:
    """The anchors of some documents after the other: memory for an eighth of what they are from."""
    before = 0
    for start in range(0, len(lengths), _PIECE_DOCUMENTS):
        ends = before + np.cumsum(layout.stream_bytes(lengths[start : start + _PIECE_DOCUMENTS]))
        yield np.concatenate([[before], ends[:-1]])[::ANCHOR_EVERY].astype(np.uint64)
        before = int(ends[-1])


def write_index(
    store: Store,
    split: str,
    source: str,
    *,
    lengths: NDArray[np.uint32],
    origin_file: NDArray[np.uint32],
    origin_row: NDArray[np.uint64],
    layout: RecordLayout,
    kept: NDArray[np.uint8] | None = None,
    members: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    folder: str = "index",
) -> dict[str, str]:
    """Write the columns of one source below `<split>/<source>/<folder>/`.

    Args:
        store: the dataset's root.
        split: name of the split.
        source: name of the source.
        lengths: uint32 (documents,), tokens of each with EOD, in the order of the shards.
        origin_file: uint32 (documents,), number of the input file in the manifest's list.
        origin_row: uint64 (documents,), line (from 1) or row (from 0) in that file.
        layout: how the documents lie in records.
        kept: uint8 (bytes,), a line of JSON a document with the fields that are kept of it.
        members: the columns of a `MemberTable`, where documents came from archives.
        folder: "index"; another for each time that documents are added.

    Returns:
        The checksum of each column, for the manifest.
    """
    columns: dict[str, NDArray[Any]] = {
        "length": np.asarray(lengths, np.uint32),
        "anchor": anchors(lengths, layout),
        "origin_file": np.asarray(origin_file, np.uint32),
        "origin_row": np.asarray(origin_row, np.uint64),
    }
    if kept is not None:
        columns |= {"kept": kept, "kept_end": _line_ends(kept)}
    columns |= members
    return {
        name: store.write_array(f"{split}/{source}/{folder}/{name}", column)
        for name, column in columns.items()
    }


def _line_ends(lines: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64 (lines,): the byte behind each line."""
    pieces = range(0, len(lines), _PIECE)
    ends = [np.flatnonzero(lines[a : a + _PIECE] == ord("\n")) + a + 1 for a in pieces]
    return np.concatenate([np.empty(0, np.uint64), *(each.astype(np.uint64) for each in ends)])


@dataclass(frozen=True)
class SourceIndex:
    """The index of one source, its columns read when first asked for.

    Args:
        store: the dataset's root.
        name: `"<split>/<source>"`.
        entry: what the manifest says of the source.
        layout: how its documents lie in records.
    """

    store: Store
    name: str
    entry: SourceEntry
    layout: RecordLayout

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document with EOD, uint32 (documents,)."""
        lengths = self._column("length")
        if len(lengths) != self.entry.documents:
            raise DatasetError(
                f"{self.store.url}: the index of {self.name} has {len(lengths)} documents, the "
                f"manifest {self.entry.documents}; convert the source again"
            )
        return lengths

    @cached_property
    def origin_file(self) -> NDArray[np.uint32]:
        """Number of the input file each document came from."""
        return self._column("origin_file")

    @cached_property
    def origin_row(self) -> NDArray[np.uint64]:
        """Line (from 1) or row (from 0) of each document in its input file."""
        return self._column("origin_row")

    def member(self, document: int) -> Member | None:
        """Where a document is in the archive that it came from; None where it came from none."""
        if columns := self.member_columns:
            file, row = int(self.origin_file[document]), int(self.origin_row[document])
            with self._told(document):
                return find_member(columns, file, row)
        return None

    def origin(self, document: int) -> tuple[str, int]:
        """The input file that a document came from, and its line (from 1) or row (from 0) there."""
        with self._told(document):
            file = self.entry.inputs[int(self.origin_file[document])]
        return file, int(self.origin_row[document])

    @contextmanager
    def _told(self, document: int) -> Iterator[None]:
        """Say of columns that nobody has verified that they make no sense."""
        try:
            yield
        except (ValueError, LookupError) as error:
            raise DatasetError(
                f"{self.store.url}: what the index of {self.name} has of document {document} is "
                f"damaged ({error!r}); jaxdata verify names the file, and says what to do"
            ) from error

    @cached_property
    def member_columns(self) -> dict[str, NDArray[Any]]:
        """The columns of its `MemberTable`; nothing where it has none."""
        return {name: self._column(name) for name in COLUMNS} if self._has_members else {}

    @property
    def _has_members(self) -> bool:
        return COLUMNS.keys() <= self.entry.checksums.keys()

    def kept(self, document: int) -> dict[str, Any]:
        """The fields that were kept of a document; empty where none were asked for."""
        if not self.entry.parameters.get("keep"):
            return {}
        lines, ends = self.kept_lines, self._kept_ends
        line = lines[int(ends[document - 1]) if document else 0 : int(ends[document])]
        with self._told(document):
            fields: dict[str, Any] = json.loads(line.tobytes())
        return fields

    @cached_property
    def kept_lines(self) -> NDArray[np.uint8]:
        """A line of JSON a document with the fields that are kept, uint8 (bytes,)."""
        return self._column("kept")

    @cached_property
    def _kept_ends(self) -> NDArray[np.uint64]:
        return self._column("kept_end")

    def locate(self, document: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(shard number, stream offset of the first chunk) of documents; int64 (n,) each."""
        shard = np.searchsorted(self.shard_starts, document, side="right") - 1
        stream = self._bytes_before(document) - self._shard_bytes[shard] + STREAM_START
        return shard, stream

    @cached_property
    def shard_starts(self) -> NDArray[np.int64]:
        """First document of each shard."""
        counts = [shard.documents for shard in self.entry.shards]
        return np.cumsum([0, *counts])[:-1]

    @cached_property
    def _shard_bytes(self) -> NDArray[np.int64]:
        """Stream bytes of all documents before each shard."""
        return self._bytes_before(self.shard_starts)

    @cached_property
    def _anchors(self) -> NDArray[np.uint64]:
        anchors = self._column("anchor")
        if len(anchors) != -(-self.entry.documents // ANCHOR_EVERY):
            raise DatasetError(
                f"{self.store.url}: the index of {self.name} has {len(anchors)} anchors for "
                f"{self.entry.documents} documents; convert the source again"
            )
        return anchors

    def _bytes_before(self, document: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stream bytes of all documents of the source before each of `document`."""
        anchor = document // ANCHOR_EVERY
        first = anchor * ANCHOR_EVERY
        # Steps by documents: the other way round, sums over so few are slow.
        lengths = self.lengths.take(first + _STEPS, mode="clip")
        between = self.layout.stream_bytes(lengths) * (document - first > _STEPS)
        return np.asarray(self._anchors[anchor].astype(np.int64) + between.sum(axis=0), np.int64)

    @property
    def columns(self) -> dict[str, tuple[type[np.generic], int | None]]:
        """Name -> (dtype, entries) of each; None where only the column itself says how many."""
        documents = self.entry.documents
        columns: dict[str, tuple[type[np.generic], int | None]] = {
            "length": (np.uint32, documents),
            "anchor": (np.uint64, -(-documents // ANCHOR_EVERY)),
            "origin_file": (np.uint32, documents),
            "origin_row": (np.uint64, documents),
        }
        if self.entry.parameters.get("keep"):
            columns |= {"kept": (np.uint8, None), "kept_end": (np.uint64, documents)}
        if self._has_members:
            columns |= {name: (dtype, None) for name, dtype in COLUMNS.items()}
        return columns

    def file(self, column: str) -> str:
        """Where a column lies in the dataset."""
        return f"{self.name}/{self.entry.index}/{column}"

    def _column(self, name: str) -> NDArray[Any]:
        return self.store.read_array(self.file(name))
