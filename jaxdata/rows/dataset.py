"""Opening a dataset: its splits, its sources, its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from jaxdata.errors import InputError
from jaxdata.format.foreign import is_foreign
from jaxdata.format.manifest import Manifest, SourceEntry, read_manifest
from jaxdata.format.storage import Store, open_store
from jaxdata.rows.foreign import ForeignDataset
from jaxdata.rows.sources import Sources, source_names
from jaxdata.rows.stored import StoredDocuments

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer

__all__ = ["Dataset", "open_dataset", "source_names"]


class Dataset(Sources):
    """A dataset on disk, opened for reading. Made by :func:`open_dataset`."""

    def __init__(self, store: Store) -> None:
        self.store, self.url = store, store.url
        self.manifest: Manifest = read_manifest(store)

    @property
    def names(self) -> Collection[str]:
        """`"<split>/<source>"` of each source."""
        return self.manifest.sources.keys()

    @property
    def eod_id(self) -> int:
        """The token that ends documents."""
        return self.manifest.tokenizer.eod_id

    def _open(self, name: str) -> StoredDocuments:
        return self._documents(name, self.manifest.sources[name])

    def _open_generation(self, name: str, generation: int) -> StoredDocuments:
        entry = self.manifest.sources[name]
        if not 0 <= generation <= len(entry.generations):
            raise InputError(
                f"{name} of {self.url} has no generation {generation}: it has 0 to "
                f"{len(entry.generations)}"
            )
        return self._documents(name, entry.at(generation))

    def _documents(self, name: str, entry: SourceEntry) -> StoredDocuments:
        return StoredDocuments(self.store, name, entry, self.manifest.layout(name))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens, from the files kept in the dataset."""
        from jaxdata import tokenizers

        entry = self.manifest.tokenizer
        files = {name: self.store.read(f"tokenizer/{name}") for name in entry.files}
        missing = [name for name, data in files.items() if data is None]
        if missing:
            raise InputError(f"{self.store.url}/tokenizer lacks {', '.join(missing)}")
        return tokenizers.restore(
            entry.kind,
            {name: data for name, data in files.items() if data is not None},
            name=entry.name,
            eod_id=entry.eod_id,
            bos_id=entry.bos_id,
            pad_id=entry.pad_id,
        )


def open_dataset(
    path: str | os.PathLike[str], *, tokenizer: str | None = None, eod_id: int | None = None
) -> Sources:
    """Open a dataset on disk or in an object store; or one of another tool, where it lies.

    Args:
        path: its folder, or `gs://…`, `s3://…`. Or `"megatron:PREFIX"` and `"gpts:PREFIX"` (a
            pair `PREFIX.bin`, `PREFIX.idx`), `"nanogpt:FILE"`, `"datatrove:FILE.ds"`: a dataset
            of split `train` with one source, named after the last component of the path.
        tokenizer: the tokenizer of another tool's dataset, as the converter takes it
            (`"tiktoken:gpt2"`); needed to decode, not to train.
        eod_id: the token that ends documents in nanoGPT's files: the tokenizer's, or else GPT-2's,
            if not given; -1 where there is none.

    Raises:
        DatasetError: there is no dataset there, or it is damaged or of another version.
    """
    text = os.fspath(path)
    if is_foreign(text):
        return ForeignDataset(text, tokenizer=tokenizer, eod_id=eod_id)
    if tokenizer is not None or eod_id is not None:
        raise InputError(f"{text} brings its own tokenizer: leave tokenizer= and eod_id= out")
    return Dataset(open_store(path))
