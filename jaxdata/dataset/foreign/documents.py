"""Other tools' datasets as sources: files are memory-mapped in place, not converted."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.dataset.array_documents import GivenRanges
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents, Gathered, Places
from jaxdata.dataset.foreign import TokenRanges, beside, find_format, read_token_ranges, source_name
from jaxdata.storage import LocalStore
from jaxdata.storage.objects import AnyPath, ObjectPath
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges, StoredFile

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer


class ForeignDataset(Dataset):
    """Another tool's dataset: split `train`, one source. Made by `open_dataset`."""

    def __init__(self, spec: str, *, tokenizer: str | None, eod_id: int | None) -> None:
        self.url, self._tokenizer = spec, tokenizer
        if eod_id is None and tokenizer is not None:
            eod_id = self.tokenizer.eod_id
        self._eod_id = find_format(spec).eod_id if eod_id is None else eod_id
        self._open("", None)  # so that missing or damaged files are reported now

    @property
    def names(self) -> Collection[str]:
        """Only `"train/<source>"`."""
        return [f"train/{source_name(self.url)}"]

    @property
    def eod_id(self) -> int | None:
        """The one given, else the tokenizer's, else for nanogpt GPT-2's."""
        return self._eod_id

    def _open(self, name: str, generation: int | None) -> Documents:
        if generation:
            raise InputError(f"{name} of {self.url} has no appends; its only generation is 0")
        return ForeignDocuments(self.url, self._eod_id)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given."""
        from jaxdata import tokenizers

        if self._tokenizer is None:
            raise InputError(
                f"{self.url} does not name its tokenizer; to decode, pass it: "
                f"open_dataset({self.url!r}, tokenizer='tiktoken:gpt2') or `tokenizer:` in a config"
            )
        return tokenizers.load(self._tokenizer)


class ForeignDocuments(Documents):
    """The documents of another tool's dataset `"<kind>:<path>"` (see `Documents`).

    With `sequences`, Megatron's sequences instead of its documents.
    """

    def __init__(self, spec: str, eod_id: int | None = None, sequences: bool = False) -> None:
        self._given = (spec, eod_id, sequences)
        self._ranges: TokenRanges = read_token_ranges(spec, eod_id=eod_id, sequences=sequences)
        self.name = f"train/{source_name(spec)}"
        self.store = beside(spec)
        self.masked, self.lengths = self._ranges.masked, self._ranges.lengths
        # int32 is read as uint32: the bytes are equal, as negative ids are refused.
        self.dtype = np.dtype("<u2" if self._ranges.dtype.itemsize < 4 else "<u4")
        # Unsigned numbers need no check and are handed out as mapped.
        self._as_is = self._ranges.dtype == self.dtype
        parts = self._ranges.parts
        self._files: list[AnyPath] = [part.tokens for part in parts]
        self._files += [part.mask for part in parts if part.mask is not None]
        self._stores_masks = len(self._files) > len(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignDocuments, self._given

    def __repr__(self) -> str:
        return f"ForeignDocuments({self._ranges.spec!r}, {len(self):,} documents)"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of sizes, samples, lengths and masked prefixes."""
        return self._ranges.fingerprint

    @property
    def sequences(self) -> ForeignDocuments:
        """Megatron's sequences, of which its documents consist, as documents."""
        spec, eod_id, _ = self._given
        found = ForeignDocuments(spec, eod_id, sequences=True)
        found.decode = self.decode
        return found

    @cached_property
    def file_sizes(self) -> Ints:
        """Bytes of each file of tokens, then of each file of masks."""
        return np.array([file.stat().st_size for file in self._files])

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """See `Documents`."""
        return self._ranges.place(documents)

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """See `Documents`."""
        tokens = self._places_of_tokens(documents, starts, counts)
        if not self._stores_masks:
            return tokens
        return Places.join(tokens, self._places_of_masks(documents, starts, counts))

    def _places_of_tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        part, begin = self._ranges.place(documents)
        item = self._ranges.dtype.itemsize
        begin += starts * item
        return Places(np.arange(len(documents)), part, begin, begin + counts * item)

    def _places_of_masks(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        part, begin = self._ranges.place(documents)
        begin = begin // self._ranges.dtype.itemsize + starts
        file = part + len(self._ranges.parts)
        return Places(np.arange(len(documents)), file, begin, begin + counts)

    def _gather(self, documents: Ints, found: Places) -> ByteRanges:
        """Ranges of files: of maps of them, or of pages of them where they lie in a bucket."""
        _, file, start, stop = found
        if self._folder is not None:
            return self._folder.gather([each.name for each in self._files], file, start, stop)
        return self.pages.gather(self._in_pages(documents, file, start, stop))

    @cached_property
    def _folder(self) -> LocalStore | None:
        """Where the files are, if that is on this machine."""
        folder = self._files[0].parent
        return LocalStore(folder) if isinstance(folder, Path) else None

    def _in_pages(self, documents: Ints, file: Ints, start: Ints, stop: Ints) -> PageRanges:
        """Ranges are at home in the page where their document begins, or in one that it fills."""
        _, begin = self._ranges.place(documents)
        size, item = self.lengths[documents].astype(np.int64), self._ranges.dtype.itemsize
        of_masks = file >= len(self._ranges.parts)
        begin = np.where(of_masks, begin // item, begin)
        end = begin + size * np.where(of_masks, 1, item)
        page = start // PAGE_BYTES
        home = (page == begin // PAGE_BYTES) | ((page + 1) * PAGE_BYTES <= end)
        return PageRanges(file, start, stop, home)

    @cached_property
    def pages(self) -> PagedFiles:
        """The files in pages, where they lie in a bucket."""
        files = [file for file in self._files if isinstance(file, ObjectPath)]
        stored = [StoredFile(file.name, file.stat().st_size, file.version) for file in files]
        return PagedFiles(str(files[0].parent), stored)

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        """See `Documents`."""
        owner, *found = self.places(documents, starts, counts)
        return self._in_pages(documents[owner], *found)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`; views of the memory maps where the files have uint16 or uint32."""
        found = self._gather(documents, self._places_of_tokens(documents, starts, counts))
        if self._as_is:
            return Gathered(found, np.arange(len(documents)))
        stored = np.frombuffer(found.join(), self._ranges.dtype)
        given = GivenRanges(self._ranges.spec, documents, starts, counts)
        return Gathered.cut(given.as_ids(stored, self.dtype), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        if self._stores_masks:
            found = self._gather(documents, self._places_of_masks(documents, starts, counts))
            return Gathered(found, np.arange(len(documents)))
        assert self._ranges.context is not None
        hidden = np.clip(self._ranges.context[documents] - starts, 0, counts)
        zeros_and_ones = np.stack([hidden, counts - hidden], axis=1).ravel()
        mask = np.repeat(np.tile(np.array([0, 1], np.uint8), len(counts)), zeros_and_ones)
        return Gathered.cut(mask, counts)
