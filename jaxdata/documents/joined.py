"""Sources of several datasets, ours and other tools', as one dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from jaxdata.documents.base import Documents
from jaxdata.documents.converted_dataset import ConvertedDataset
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer


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
        self._ours = {
            name: dataset
            for name, (dataset, _) in sources.items()
            if isinstance(dataset, ConvertedDataset)
        }
        self._check_tokenizers()

    def _check_tokenizers(self) -> None:
        made_by = {name: dataset.manifest.tokenizer for name, dataset in self._ours.items()}
        for name, entry in made_by.items():
            first = next(iter(made_by))
            if entry != made_by[first]:
                raise InputError(
                    f"sources {first!r} and {name!r} were made with different tokenizers, "
                    f"{made_by[first].name!r} and {entry.name!r}: their ids mean different texts; "
                    "convert one of them again"
                )

    @property
    def names(self) -> Collection[str]:
        """`"<split>/<source>"` of each source, for every split of its dataset that has it."""
        return [
            f"{split}/{name}"
            for name, (dataset, there) in self._sources.items()
            for split, sources in dataset.splits.items()
            if there in sources
        ]

    @property
    def eod_id(self) -> int | None:
        """The token that ends documents, if all datasets agree on it."""
        known = {dataset.eod_id for dataset, _ in self._sources.values()}
        return known.pop() if len(known) == 1 else None

    def _open(self, name: str, generation: int | None) -> Documents:
        split, _, here = name.partition("/")
        dataset, there = self._sources[here]
        return dataset.source(split, there, generation=generation)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer stored in the datasets, else the one given."""
        from jaxdata import tokenizers

        if self._ours:
            return next(iter(self._ours.values())).tokenizer
        if self._given is None:
            raise InputError(
                f"none of {', '.join(self._sources)} names its tokenizer; set it, as "
                "`tokenizer: tiktoken:gpt2` in a config"
            )
        return tokenizers.load(self._given)


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
