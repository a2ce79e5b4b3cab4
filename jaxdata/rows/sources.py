"""What every opened dataset is: named sources of splits, and the tokenizer that made them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.errors import InputError
from jaxdata.rows.documents import Documents

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer

__all__ = ["Sources", "source_names"]


class Sources(ABC):
    """Documents by split and source, opened for reading."""

    url: str
    """what was opened"""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """`"<split>/<source>"` of each source."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens; raises InputError where it is not known."""

    @property
    @abstractmethod
    def eod_id(self) -> int | None:
        """The token that ends documents; None where it is not known."""

    @abstractmethod
    def _open(self, name: str) -> Documents:
        """The documents of one of `names`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.splits})"

    @property
    def splits(self) -> dict[str, list[str]]:
        """Names of the sources of each split, sorted."""
        splits: dict[str, list[str]] = {}
        for name in sorted(self.names):
            split, _, source = name.partition("/")
            splits.setdefault(split, []).append(source)
        return splits

    def source(self, split: str, name: str, *, generation: int | None = None) -> Documents:
        """The documents of one source; raises InputError naming the nearest that exists.

        Args:
            split: "train", "val", …
            name: of the source in it.
            generation: what it was with so many additions (0: what it began as), which is what
                the state of an older run belongs to; None for what it is now.
        """
        full = f"{split}/{name}"
        if full not in self.names:
            near = get_close_matches(full, self.names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"no source {full!r} in {self.url}: it has "
                f"{', '.join(sorted(self.names)) or 'none'}{hint}"
            )
        return self._open(full) if generation is None else self._open_generation(full, generation)

    def _open_generation(self, name: str, generation: int) -> Documents:
        """The first documents of one of `names`; raises InputError where there are no such."""
        if generation:
            raise InputError(f"{name} of {self.url} was never added to: it has generation 0 alone")
        return self._open(name)

    def decode(self, ids: ArrayLike) -> str:
        """Text of token ids; special tokens give nothing."""
        return self.tokenizer.decode(np.asarray(ids).tolist())

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes that each id stands for, int32 (vocab_size,); 0 for special ids."""
        return self.tokenizer.token_bytes


def source_names(dataset: Sources, split: str) -> list[str]:
    """The sources of a split; raises InputError where there is no such split."""
    if split not in dataset.splits:
        raise InputError(f"no split {split!r}: the dataset has {', '.join(dataset.splits)}")
    return dataset.splits[split]
