"""Opening datasets: converted ones, other tools' files, and several as one.

An opened dataset has named sources by split, and their tokenizer. Documents of a converted one are
read as slices of its shards.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata import tokenizers
from jaxdata.base import errors
from jaxdata.base.errors import DatasetError, InputError, JaxdataError, counted, digest, nearest
from jaxdata.base.lazy import cached_property
from jaxdata.base.numbers import validated
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.documents import Documents, Gathered, StatedLengths, run_ends
from jaxdata.dataset.foreign import find_format, is_foreign, source_name
from jaxdata.dataset.foreign.documents import ForeignDocuments
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import Manifest, SourceEntry, read_manifest
from jaxdata.dataset.records import STREAM_BLOCK, STREAM_START, file_offset
from jaxdata.dataset.views.kept_documents import kept_documents
from jaxdata.storage import Store, open_store
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges, StoredFile


class Dataset(ABC):
    """Documents by split and source, opened for reading."""

    url: str
    """the path or URL that was opened"""
    views: Mapping[str, str] = MappingProxyType({})
    """`"<split>/<source>"` -> the view through which it is read, unless another is asked for"""
    transforms: Mapping[str, Callable[[Documents], Documents]] = MappingProxyType({})
    """source -> a function that its documents are given to; what is read is what it returns"""

    names: Collection[str]
    """`"<split>/<source>"` of each source"""
    eod_id: int | None
    """the token that ends documents; None if it is unknown"""

    @property
    @abstractmethod
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that made the tokens; raises InputError if it is unknown."""

    @abstractmethod
    def _open(self, name: str, generation: int | None) -> Documents:
        """The documents of one of `names`; raises InputError if it has no such generation."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.splits})"

    def __contains__(self, name: object) -> bool:
        """Whether it has a source `"<split>/<source>"`, or one of that name in any split."""
        return name in self.names or any(name in sources for sources in self.splits.values())

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names))

    def __getitem__(self, name: str) -> Documents:
        """The documents of `"<split>/<source>"`, as `source` gives them; of one split, `name`."""
        of_name = [full for full in self if full.partition("/")[2] == name]
        places = [name] if name in self.names else of_name
        if len(places) > 1:
            raise InputError(f"{name!r} names no split: give {' or '.join(map(repr, places))}")
        split, _, source = (places or [str(name)])[0].partition("/")
        return self.source(split, source)

    @property
    def splits(self) -> dict[str, list[str]]:
        """Names of the sources of each split, sorted."""
        splits: dict[str, list[str]] = {}
        for name in sorted(self.names):
            split, _, source = name.partition("/")
            splits.setdefault(split, []).append(source)
        return splits

    @validated
    def source(
        self, split: str, name: str, *, generation: int | None = None, documents: str | None = None
    ) -> Documents:
        """Return the documents of a source; an unknown name raises InputError with the nearest one.

        Args:
            split: "train", "val", …
            name: the source in it.
            generation: the source as it was after this many appends and deletions (0: before the
                first), which states of older runs refer to; None for what it is now. Documents
                that were deleted since are 0s.
            documents: the view whose documents are meant, as `jaxdata dedup` makes them; None for
                all.
        """
        full = f"{split}/{name}" if name else split
        if full not in self.names:
            raise InputError(
                f"no source {full!r} in {self.url}: it has "
                f"{', '.join(sorted(self.names)) or 'none'}{nearest(full, self.names)}"
            )
        found, view = self._open(full, generation), documents or self.views.get(full)
        found.base.decode = self.decode
        found = found if view is None else kept_documents(found, view)
        transform = self.transforms.get(full.partition("/")[2])
        if transform is None:
            return found
        made = transform(found)
        if not isinstance(made, Documents):
            raise InputError(
                f"{errors.name_of(transform)} returned a {type(made).__name__} for {full}: "
                "expected documents, as docs.filter(f) and docs.map(f) give them"
            )
        return made

    def with_views(self, views: Mapping[str, str]) -> Self:
        """The same dataset, of which sources (`"<split>/<source>"`) are read through views."""
        chosen = copy(self)
        chosen.views = dict(views)
        return chosen

    def decode(self, ids: ArrayLike) -> str:
        """The text of token ids, without special tokens."""
        return self.tokenizer.decode(np.asarray(ids).tolist())

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Number of raw bytes of each id, int32 (vocab_size,); 0 for special ids."""
        return self.tokenizer.token_bytes


def source_names(dataset: Dataset, split: str) -> list[str]:
    """The sources of a split; raises InputError if it does not exist."""
    if split not in dataset.splits:
        raise InputError(f"no split {split!r}: the dataset has {', '.join(dataset.splits)}")
    return dataset.splits[split]


def named_sources(dataset: Dataset, name: str) -> list[Documents]:
    """The sources of a split (`"val"`), or one of them (`"val/web"`); InputError for others."""
    split, _, source = name.partition("/")
    if source and split in dataset.splits:
        return [dataset.source(split, source)]
    return [dataset.source(name, source) for source in source_names(dataset, name)]


@validated
def open_dataset(
    path: str | os.PathLike[str], *, tokenizer: str | None = None, eod_id: int | None = None
) -> Dataset:
    """Open a dataset on disk or in an object store, or use another tool's dataset in place.

    Args:
        path: its folder, or `gs://…`, `s3://…`. Or `"megatron:PREFIX"` and `"gpts:PREFIX"` (a
            pair `PREFIX.bin`, `PREFIX.idx`), `"nanogpt:FILE"`, `"datatrove:FILE.ds"`: a dataset
            of split `train` with one source, named after the last component of the path.
        tokenizer: the tokenizer of another tool's dataset, as the converter takes it
            (`"tiktoken:gpt2"`); required to decode, not to train.
        eod_id: the token that ends documents in nanoGPT's files; by default the tokenizer's, else
            GPT-2's; -1 for none.

    Raises:
        DatasetError: the dataset is missing, damaged or of another format version.

    >>> import tempfile
    >>> from jaxdata.testing import write_dataset
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_dataset(folder, {"train/web": [[1, 2, 3, 0], [4, 5, 0]]})
    >>> docs = open_dataset(folder).source("train", "web")
    >>> docs[1]["tokens"].tolist(), docs.lengths.tolist()
    ([4, 5, 0], [4, 3])
    """
    text = os.fspath(path)
    if is_foreign(text):
        return ForeignDataset(text, tokenizer, eod_id)
    if tokenizer is not None or eod_id is not None:
        raise InputError(f"{text} has its own tokenizer; remove tokenizer= and eod_id=")
    return ConvertedDataset(open_store(path))


def open_converted(path: str | os.PathLike[str], instead: str) -> "ConvertedDataset":
    """Open a dataset of the converter; InputError for another tool's, with what is done there."""
    if isinstance(found := open_dataset(path), ConvertedDataset):
        return found
    raise InputError(f"{found.url} is another tool's dataset{instead}")


class ConvertedDataset(Dataset):
    """A dataset of the converter, opened for reading; see :func:`open_dataset`."""

    def __init__(self, store: Store) -> None:
        self.store, self.url = store, store.url
        self.manifest: Manifest = read_manifest(store)
        self.names, self.eod_id = self.manifest.sources.keys(), self.manifest.tokenizer.eod_id

    def _open(self, name: str, generation: int | None) -> "ConvertedDocuments":
        entry = self.manifest.sources[name]
        newest = len(entry.generations)
        if generation is not None and not 0 <= generation <= newest:
            raise InputError(
                f"{name} of {self.url} has no generation {generation}: it has 0 to {newest}"
            )
        entry = entry if generation is None else entry.at(generation)
        index = SourceIndex(self.store, name, entry, self.manifest.record_spec(name))
        found = ConvertedDocuments(index)
        if found.blanked is not None:
            tokens = int(found.lengths[found.blanked].sum(dtype=np.int64))
            errors.warn_once(
                f"{self.url}: of {name}, generation {generation}, "
                f"{counted(len(found.blanked), 'document')} of {counted(tokens, 'token')} were "
                "deleted since: in rows they are padding, without loss"
            )
        return found

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that made the tokens, loaded from its files in the dataset."""
        entry = self.manifest.tokenizer
        files = {name: self.store.read(f"tokenizer/{name}") or b"" for name in entry.files}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != entry.files[name]:
                raise DatasetError(
                    f"{self.url}/tokenizer/{name} is missing, or differs from its checksum: "
                    "restore it from a copy"
                )
        ids: Any = {"eod_id": entry.eod_id, "bos_id": entry.bos_id, "pad_id": entry.pad_id}
        try:
            return tokenizers.restore(entry.kind, files, name=entry.name, **ids)
        except JaxdataError:
            raise
        except Exception as error:  # the libraries raise what they like
            raise DatasetError(
                f"{self.url}/tokenizer cannot be loaded as a tokenizer of kind {entry.kind!r} "
                f"({error}): restore its files from a copy"
            ) from error


class ForeignDataset(Dataset):
    """Another tool's dataset: split `train`, one source; see :func:`open_dataset`."""

    def __init__(self, spec: str, tokenizer: str | None, eod_id: int | None) -> None:
        self.url, self._tokenizer = spec, tokenizer
        self.names = [f"train/{source_name(spec)}"]
        if eod_id is None:
            eod_id = find_format(spec).eod_id if tokenizer is None else self.tokenizer.eod_id
        self.eod_id = eod_id
        self._open(self.names[0], None)  # so that missing or damaged files are reported now

    def _open(self, name: str, generation: int | None) -> Documents:
        if generation:
            raise InputError(f"{name} of {self.url} has no appends; its only generation is 0")
        return ForeignDocuments(self.url, self.eod_id)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that was given."""
        return _load_tokenizer(self._tokenizer, self.url)


def _load_tokenizer(given: str | None, of: str) -> tokenizers.Tokenizer:
    if given is None:
        raise InputError(
            f"{of} names no tokenizer; to decode, give it: open_dataset(…, "
            "tokenizer='tiktoken:gpt2'), or `tokenizer: tiktoken:gpt2` in a config"
        )
    return tokenizers.load(given)


class JoinedDataset(Dataset):
    """Sources of several datasets under new names.

    Args:
        sources: new name -> (dataset, name in it).
        tokenizer: the tokenizer of the data, if no dataset stores its own.
    """

    def __init__(
        self, sources: Mapping[str, tuple[Dataset, str]], tokenizer: str | None = None
    ) -> None:
        self._sources, self._given = dict(sources), tokenizer
        self.url = ", ".join(dict.fromkeys(dataset.url for dataset, _ in sources.values()))
        ours = {
            name: one for name, (one, _) in sources.items() if isinstance(one, ConvertedDataset)
        }
        made_by = {name: one.manifest.tokenizer for name, one in ours.items()}
        for name, entry in made_by.items():
            first = next(iter(made_by))
            if entry != made_by[first]:
                raise InputError(
                    f"sources {first!r} and {name!r} were made with different tokenizers, "
                    f"{made_by[first].name!r} and {entry.name!r}: their ids mean different texts; "
                    "convert one of them again"
                )
        self._tokenizer_of = next(iter(ours.values()), None)
        self.names = [
            f"{split}/{name}"
            for name, (dataset, there) in sources.items()
            for split, known in dataset.splits.items()
            if there in known
        ]
        ends = {dataset.eod_id for dataset, _ in sources.values()}
        self.eod_id = ends.pop() if len(ends) == 1 else None

    def _open(self, name: str, generation: int | None) -> Documents:
        split, _, here = name.partition("/")
        dataset, there = self._sources[here]
        return dataset.source(split, there, generation=generation)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer stored in the datasets, else the one given."""
        if self._tokenizer_of is not None:
            return self._tokenizer_of.tokenizer
        return _load_tokenizer(self._given, self.url)


def source_meant(dataset: Dataset, name: str, source: str | None = None) -> str:
    """Find the source of a dataset that a config calls `name`.

    It is `source`, else the source of that name, else the only one.
    """
    known = sorted({name for names in dataset.splits.values() for name in names})
    wanted = source or name
    if wanted in known:
        return wanted
    if source is None and len(known) == 1:
        return known[0]
    raise InputError(
        f"{dataset.url} has no source {wanted!r}, only {', '.join(known) or 'none'}; choose one: "
        f"{name}: {{dataset: {dataset.url}, source: …}}"
    )


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
