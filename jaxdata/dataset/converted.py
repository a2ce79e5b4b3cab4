"""Documents of a converted dataset, read as slices of its shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.documents import Documents, Gathered, Places, StatedLengths, run_ends
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.dataset.records import STREAM_BLOCK, RecordSpec, file_offset
from jaxdata.storage import Store
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges, StoredFile

Offsets = Callable[[Any, Any], Ints]
_SIZE_BYTES = np.arange(4)  # of the eight that hold a record's size: none reaches 4 GiB


class ConvertedDocuments(Documents):
    """One source of a dataset on disk (see `Documents`)."""

    store: Store
    entry: SourceEntry

    def __init__(
        self,
        store: Store,
        name: str,
        entry: SourceEntry,
        spec: RecordSpec,
        index: SourceIndex | None = None,
    ) -> None:
        self.store, self.name = store, name
        self.entry, self.spec = entry, spec
        self.masked, self.fingerprint = entry.masked, entry.fingerprint
        self.index = index or SourceIndex(store, name, entry, spec)
        self._shards = [shard.name for shard in entry.shards]
        # Whether shards were compared with the index; in a bucket that would cost requests.
        self._seen = np.full(len(entry.shards), not store.local)
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")

    def __reduce__(self) -> tuple[Any, ...]:
        return ConvertedDocuments, (self.store, self.name, self.entry, self.spec)

    def __repr__(self) -> str:
        return f"ConvertedDocuments({self.name!r}, {len(self):,} documents, {self.store.url!r})"

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document with EOD, uint32 (documents,)."""
        if self.store.local:
            _ = self.index.anchors  # reading needs them too, and mapping costs nothing
        return self.index.lengths

    @property
    def stated_lengths(self) -> StatedLengths:
        """What the manifest says of them."""
        stored, deleted = self.entry.checksums["length"], self.entry.deleted
        if not deleted.documents:
            return StatedLengths(self.entry.tokens, stored)
        both = digest([stored, self.entry.checksums["deleted"]])
        return StatedLengths(self.entry.tokens - deleted.tokens, both, deleted.documents)

    def check_lengths(self) -> None:
        """Compare them with the manifest; raises DatasetError if they are others."""
        self.index.check_lengths()

    def __len__(self) -> int:
        return self.entry.documents

    @cached_property
    def side(self) -> Mapping[str, Documents]:
        """Side arrays by name: the same documents, in shards of their own."""
        return {
            name: ConvertedDocuments(self.store, self.name, index.entry, index.spec, index)
            for name, index in self.index.sides.items()
        }

    @cached_property
    def loss_tokens(self) -> int | None:
        """Targets with loss after stored masks, as conversions counted."""
        found: int | None = self.entry.statistics.get("loss_tokens")
        return found

    @cached_property
    def blanked(self) -> NDArray[np.uint64] | None:
        """See `Documents`."""
        found = self.index.blanked
        return found if len(found) else None

    def origin(self, index: int) -> tuple[str, int]:
        """See `Documents`; always known."""
        document = range(len(self))[index]
        file, row = self.index.origin(document)
        if member := self.index.member(document):
            return f"{file}: {member.name}", member.number
        return file, row

    def kept(self, index: int) -> dict[str, Any]:
        return self.index.kept(range(len(self))[index])

    def page_ends(self, size: int) -> Ints:
        """See `Documents`; pages of the shards."""

        def pages(documents: Ints) -> Ints:
            shard, offset = self.first_bytes(documents)
            return (shard << 40) + offset // size  # a shard has 2**40 at most

        return run_ends(pages, len(self))

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """The shard of some documents, and the byte in it where the record of each begins."""
        shard, stream = self.index.locate(documents)
        return shard, file_offset(stream)

    @cached_property
    def file_sizes(self) -> Ints:
        """Bytes of each shard up to the end of its last record; int64 (shards,)."""
        counts = np.array([shard.documents for shard in self.entry.shards], np.int64)
        last = (np.cumsum(counts) - 1)[counts > 0]
        shard, stream = self.index.locate(last)
        ends = np.zeros_like(counts)
        ends[shard] = file_offset(stream + self.spec.stream_bytes(self.index.stored[last]) - 1) + 1
        return ends

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """See `Documents`."""
        spec, (whole, spans) = self.spec, self._spans(documents, starts, counts)
        found = [spans.places(whole, spec.token_offset, spec.item)]
        if self.masked:
            found.append(spans.places(whole, spec.mask_offset, 1))
        return Places.join(*found)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`; views of the memory maps."""
        return self._read(documents, starts, counts, self.spec.token_offset, self.spec.item)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._read(documents, starts, counts, self.spec.mask_offset, 1)

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Offsets, item: int
    ) -> Gathered:
        whole, spans = self._spans(documents, starts, counts)
        if not self._seen[spans.shard].all():
            self._compare(*spans)
        found = spans.places(whole, offsets, item)
        if self.store.local:
            views = self.store.gather(self._shards, found.file, found.start, found.stop)
        else:
            views = self.pages.gather(self._in_pages(found, documents))
        return Gathered(views, found.owner)

    def _spans(self, documents: Ints, starts: Ints, counts: Ints) -> tuple[Ints, _Spans]:
        """The ranges cut where records end, and which range each piece was cut from."""
        if counts.max(initial=0) > self.entry.tokens:  # before memory is asked for them
            raise self.index.other()
        shard, stream = self.index.locate(documents)
        spans = _Spans(shard, stream, self.index.stored[documents], starts, counts)
        return spans.by_record(self.spec.record_tokens)

    @cached_property
    def pages(self) -> PagedFiles:
        """See `Documents`."""
        files = [StoredFile(each.name, each.bytes, each.sha256) for each in self.entry.shards]
        return PagedFiles(self.store.url, files, lambda: self.index.pages)

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        """See `Documents`."""
        return self._in_pages(self.places(documents, starts, counts), documents)

    def _in_pages(self, found: Places, documents: Ints) -> PageRanges:
        """Ranges are at home in the page where their document begins, or in one that it fills."""
        _, stream = self.index.locate(documents)
        taken = self.spec.stream_bytes(self.index.stored[documents])
        first = file_offset(stream) // PAGE_BYTES
        end = file_offset(stream + taken - 1) + 1
        page = found.start // PAGE_BYTES
        fills = (page + 1) * PAGE_BYTES <= end[found.owner]
        home = (page == first[found.owner]) | fills
        return PageRanges(found.file, found.start, found.stop, home)

    def _compare(
        self, shard: Ints, stream: Ints, lengths: AnyInts, starts: Ints, counts: Ints
    ) -> None:
        """Compare shards read for the first time with the index, at a record that is read anyway.

        Raises:
            DatasetError: a shard is shorter than the manifest says, or its records lie elsewhere.
        """
        at = np.flatnonzero(~self._seen[shard] & (counts > 0))
        new = shard[at]
        fields, sizes = self.spec.size_field(lengths[at], starts[at])
        places = file_offset((stream[at] + fields)[:, None] + _SIZE_BYTES).ravel()
        begin = np.concatenate([places, self._shard_bytes[new] - 1])
        files = np.concatenate([new.repeat(len(_SIZE_BYTES)), new])
        found = self.store.gather(self._shards, files, begin, begin + 1)
        headers = np.frombuffer(found.take(slice(len(places))).join(), "<u4")
        if (headers != sizes).any():
            wrong = self._shards[new[headers != sizes][0]]
            raise DatasetError(
                f"{self.store.url}/{wrong}: its records are not those in the index of "
                f"{self.name}; jaxdata verify {self.store.url} names what is damaged"
            )
        self._seen[new] = True

    @cached_property
    def _shard_bytes(self) -> NDArray[np.int64]:
        return np.array([shard.bytes for shard in self.entry.shards])


class _Spans(NamedTuple):
    """Ranges of tokens of documents of these lengths; (spans,) each."""

    shard: Ints
    stream: Ints
    """stream offset of the document's first record"""
    length: AnyInts
    first: Ints
    """first token"""
    tokens: Ints
    """number of them"""

    def by_record(self, record_tokens: int) -> tuple[Ints, _Spans]:
        """The same tokens, cut where records end; and the span that each piece was cut from."""
        if self.length.max(initial=0) <= record_tokens:
            return np.arange(len(self.first)), self
        of, first, tokens = _split(self.first, self.tokens, record_tokens)
        return of, _Spans(self.shard[of], self.stream[of], self.length[of], first, tokens)

    def places(self, owner: Ints, offsets: Offsets, item: int) -> Places:
        """Where they lie; a record may contain a block header of the file."""
        begin = self.stream + offsets(self.length, self.first)
        run, begin, size = _split(begin, self.tokens * item, STREAM_BLOCK)
        start = file_offset(begin)
        return Places(owner[run], self.shard[run], start, start + size)


def _split(start: Ints, size: Ints, every: int) -> tuple[Ints, Ints, Ints]:
    """Split ranges at multiples of `every`; the range, start and size of each result."""
    first = start // every
    last = (start + size - 1) // every
    if (first == last).all():
        return np.arange(len(start)), start, size
    of, number = expand(last - first + 1)
    edge = (first[of] + number) * every
    begin = np.maximum(start[of], edge)
    return of, begin, np.minimum((start + size)[of], edge + every) - begin
