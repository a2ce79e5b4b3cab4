"""Opening datasets: converted ones, other tools' files, and several as one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, JaxdataError, warn_once
from jaxdata.base.lazy import cached_property
from jaxdata.base.numbers import validated
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.foreign import find_format, is_foreign, source_name
from jaxdata.dataset.foreign.documents import ForeignDocuments
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import Manifest, read_manifest
from jaxdata.storage import Store, open_store

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer


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


def open_converted(path: str | os.PathLike[str], instead: str) -> ConvertedDataset:
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

    def _open(self, name: str, generation: int | None) -> ConvertedDocuments:
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
            warn_once(
                f"{self.url}: of {name}, generation {generation}, "
                f"{counted(len(found.blanked), 'document')} of {counted(tokens, 'token')} were "
                "deleted since: in rows they are padding, without loss"
            )
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens, loaded from its files in the dataset."""
        from jaxdata import tokenizers

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
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given."""
        return _load_tokenizer(self._tokenizer, self.url)


def _load_tokenizer(given: str | None, of: str) -> Tokenizer:
    from jaxdata import tokenizers

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
    def tokenizer(self) -> Tokenizer:
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
