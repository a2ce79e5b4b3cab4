"""Opening a dataset: its splits, its sources, its tokenizer."""

from __future__ import annotations

import os
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.errors import InputError
from jaxdata.format.manifest import Manifest, read_manifest
from jaxdata.format.storage import Store, open_store
from jaxdata.rows.stored import StoredDocuments

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer

__all__ = ["Dataset", "open_dataset", "source_names"]


class Dataset:
    """A dataset on disk, opened for reading. Made by :func:`open_dataset`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.manifest: Manifest = read_manifest(store)

    def __repr__(self) -> str:
        return f"Dataset({self._store.url!r}, {self.splits})"

    @property
    def splits(self) -> dict[str, list[str]]:
        """Names of the sources of each split, sorted."""
        splits: dict[str, list[str]] = {}
        for name in sorted(self.manifest.sources):
            split, _, source = name.partition("/")
            splits.setdefault(split, []).append(source)
        return splits

    def source(self, split: str, name: str) -> StoredDocuments:
        """The documents of one source; raises InputError naming the nearest that exists."""
        full = f"{split}/{name}"
        if full not in self.manifest.sources:
            near = get_close_matches(full, self.manifest.sources, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"no source {full!r} in {self._store.url}: it has "
                f"{', '.join(sorted(self.manifest.sources)) or 'none'}{hint}"
            )
        entry = self.manifest.sources[full]
        return StoredDocuments(self._store, full, entry, self.manifest.layout(full))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens, from the files kept in the dataset."""
        from jaxdata import tokenizers

        entry = self.manifest.tokenizer
        files = {name: self._store.read(f"tokenizer/{name}") for name in entry.files}
        missing = [name for name, data in files.items() if data is None]
        if missing:
            raise InputError(f"{self._store.url}/tokenizer lacks {', '.join(missing)}")
        return tokenizers.restore(
            entry.kind,
            {name: data for name, data in files.items() if data is not None},
            name=entry.name,
            eod_id=entry.eod_id,
            bos_id=entry.bos_id,
            pad_id=entry.pad_id,
        )

    def decode(self, ids: ArrayLike) -> str:
        """Text of token ids; special tokens give nothing."""
        return self.tokenizer.decode(np.asarray(ids).tolist())

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes that each id stands for, int32 (vocab_size,); 0 for special ids."""
        return self.tokenizer.token_bytes


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a dataset on disk or in an object store.

    Args:
        path: its folder, or `gs://…`, `s3://…`.

    Raises:
        DatasetError: there is no dataset there, or it is damaged or of another version.
    """
    return Dataset(open_store(path))


def source_names(dataset: Dataset, split: str) -> list[str]:
    """The sources of a split; raises InputError where there is no such split."""
    if split not in dataset.splits:
        raise InputError(f"no split {split!r}: the dataset has {', '.join(dataset.splits)}")
    return dataset.splits[split]
