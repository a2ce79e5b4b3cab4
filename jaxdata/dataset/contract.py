"""The contract of an opened dataset: named sources by split, and their tokenizer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.base.wording import name_of, nearest
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import kept_documents

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer


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
    def tokenizer(self) -> "Tokenizer":
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
                f"{name_of(transform)} returned a {type(made).__name__} for {full}: expected "
                "documents, as docs.filter(f) and docs.map(f) give them"
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
