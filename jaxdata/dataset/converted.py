"""Documents of a converted dataset, read as slices of its shards."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.documents import Documents, Gathered, StatedLengths, run_ends
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.dataset.records import STREAM_BLOCK, STREAM_START, file_offset
from jaxdata.storage import Store
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges, StoredFile

Offsets = Callable[[Any, Any], Ints]
_SIZE_BYTES = np.arange(4)  # of the eight that hold a record's size: none reaches 4 GiB


class ConvertedDocuments(Documents):
    """One source of a dataset on disk, or one of its side arrays (see `Documents`)."""

    store: Store
    entry: SourceEntry

    def __init__(self, index: SourceIndex) -> None:
        self.index, self.spec = index, index.spec
        self.store, self.name, self.entry = index.store, index.name, index.entry
        self.masked, self.fingerprint = self.entry.masked, self.entry.fingerprint
        self._shards = [shard.name for shard in self.entry.shards]
        # Whether shards were compared with the index; in a bucket that would cost requests.
        self._seen = np.full(len(self._shards), not self.store.local)
        self.dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        self.blanked = index.blanked if len(index.blanked) else None
        self.side = {name: ConvertedDocuments(each) for name, each in index.sides.items()}
        deleted, content = self.entry.deleted, self.entry.checksums["length"]
        if deleted.documents:
            content = digest([content, self.entry.checksums["deleted"]])
        tokens = self.entry.tokens - deleted.tokens
        self.stated_lengths = StatedLengths(tokens, content, deleted.documents)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConvertedDocuments, (self.index,)

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        return self.index.lengths

    def check_lengths(self) -> None:
        self.index.check_lengths()

    def __len__(self) -> int:
        return self.entry.documents

    def origin(self, index: int) -> tuple[str, int]:
        file, row, member = self.index.origin(range(len(self))[index])
        return (f"{file}: {member.name}", member.number) if member else (file, row)

    def kept(self, index: int) -> dict[str, Any]:
        document = range(len(self))[index]
        return self.index.kept(document, document + 1)[0]

    def page_ends(self, size: int) -> Ints:
        """See `Documents`; pages of the shards."""

        def pages(documents: Ints) -> Ints:
            shard, stream = self.index.locate(documents)
            return (shard << 40) + file_offset(stream) // size  # a shard has 2**40 at most

        return run_ends(pages, len(self))

    @property
    def file_sizes(self) -> Ints:
        """Bytes of each shard up to about the end of its last record; int64 (shards,)."""
        item, header = self.spec.item_with_mask, STREAM_START + 6
        counts = [(shard.tokens, shard.records) for shard in self.entry.shards]
        return np.array([n * item + records * header for n, records in counts], np.int64)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`; views of the memory maps."""
        return self._read(documents, starts, counts, self.spec.token_offset, self.spec.item)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._read(documents, starts, counts, self.spec.mask_offset, 1)

    def _read(
        self, documents: Ints, starts: Ints, counts: Ints, offsets: Offsets, item: int
    ) -> Gathered:
        spans = self._spans(documents, starts, counts)
        if not self._seen[spans.shard].all():
            self._compare(spans)
        found = spans.places(offsets, item)
        if self.store.local:
            views = self.store.gather(self._shards, found.file, found.start, found.stop)
        else:
            views = self.pages.gather(self._in_pages(found, documents))
        return Gathered(views, found.owner)

    def _spans(self, documents: Ints, starts: Ints, counts: Ints) -> "_Spans":
        """The ranges, cut where records end."""
        if counts.max(initial=0) > self.entry.tokens:  # before memory is asked for them
            raise self.index.other()
        shard, stream = self.index.locate(documents)
        of, lengths = np.arange(len(documents)), self.index.stored[documents]
        if lengths.max(initial=0) > self.spec.record_tokens:
            of, starts, counts = _split(starts, counts, self.spec.record_tokens)
            shard, stream, lengths = shard[of], stream[of], lengths[of]
        return _Spans(of, shard, stream, lengths, starts, counts)

    @cached_property
    def pages(self) -> PagedFiles:
        files = [StoredFile(each.name, each.bytes, each.sha256) for each in self.entry.shards]
        pages = partial(self.index.column, "page")
        return PagedFiles(self.store.url, files, pages, self._ends_across)

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        spans = self._spans(documents, starts, counts)
        found = spans.places(self.spec.token_offset, self.spec.item)
        if self.masked:
            masks = spans.places(self.spec.mask_offset, 1)
            found = _Places(*map(np.concatenate, zip(found, masks, strict=True)))
        return self._in_pages(found, documents)

    def _in_pages(self, found: "_Places", documents: Ints) -> PageRanges:
        """The ranges in a bucket of these documents' places.

        Where documents are dealt by pages, a range is fetched with the page where its document
        begins, or with one that this fills; its last bytes, if they spill, with the page before.
        """
        begin, end = (each[found.owner] for each in self._extent(documents))
        own = found.start // PAGE_BYTES
        spills = (own > begin // PAGE_BYTES) & ((own + 1) * PAGE_BYTES > end)
        return PageRanges(*found[1:], own - spills, documents[found.owner])

    def _extent(self, documents: Ints) -> tuple[Ints, Ints]:
        """The bytes of shards at which documents begin and end."""
        _, stream = self.index.locate(documents)
        last = stream + self.spec.stream_bytes(self.index.stored[documents]) - 1
        return file_offset(stream), file_offset(last) + 1

    def _ends_across(self, documents: Ints, shards: Ints, edges: Ints) -> Ints:
        """See `Spills`: the last document that begins before each edge is near the given one."""
        last = self.index.shard_stops[shards] - 1

        def before(document: Ints) -> NDArray[np.bool_]:
            begin, _ = self._extent(np.minimum(document, last))
            return (document <= last) & (begin < edges)

        step = 1
        while before(documents + step).any():
            step *= 2
        while step := step // 2:
            documents = documents + step * before(documents + step)
        return np.maximum(self._extent(documents)[1], edges)

    def _compare(self, spans: "_Spans") -> None:
        """Compare shards read for the first time with the index, at a record that is read anyway.

        Raises:
            DatasetError: a shard is shorter than the manifest says, or its records lie elsewhere.
        """
        at = np.flatnonzero(~self._seen[spans.shard] & (spans.tokens > 0))
        _, shard, stream, lengths, starts, _ = spans
        new = shard[at]
        fields, sizes = self.spec.size_field(lengths[at], starts[at])
        places = file_offset((stream[at] + fields)[:, None] + _SIZE_BYTES).ravel()
        sizes_of_files = np.array([shard.bytes for shard in self.entry.shards])
        begin = np.concatenate([places, sizes_of_files[new] - 1])
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


class _Places(NamedTuple):
    """Ranges of bytes that hold some ranges of tokens; int64 (places,) each."""

    owner: Ints
    """number of the range of tokens that each belongs to"""
    file: Ints
    start: Ints
    stop: Ints


class _Spans(NamedTuple):
    """Ranges of tokens of documents of these lengths; (spans,) each."""

    owner: Ints
    """number of the range that was asked for"""
    shard: Ints
    stream: Ints
    """stream offset of the document's first record"""
    length: AnyInts
    first: Ints
    """first token"""
    tokens: Ints
    """number of them"""

    def places(self, offsets: Offsets, item: int) -> _Places:
        """Where they lie; a record may contain a block header of the file."""
        begin = self.stream + offsets(self.length, self.first)
        run, begin, size = _split(begin, self.tokens * item, STREAM_BLOCK)
        start = file_offset(begin)
        return _Places(self.owner[run], self.shard[run], start, start + size)


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
