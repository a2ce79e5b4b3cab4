"""Sources of several datasets, ours and other tools', as one dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from jaxdata.errors import InputError
from jaxdata.rows.dataset import Dataset
from jaxdata.rows.documents import Documents
from jaxdata.rows.sources import Sources

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer

__all__ = ["JoinedDataset", "source_meant"]


class JoinedDataset(Sources):
    """Sources by names of their own, each of some dataset.

    Args:
        sources: name here -> (dataset, name there).
        tokenizer: that of other tools' datasets, if none of the others is ours.
    """

    def __init__(
        self, sources: Mapping[str, tuple[Sources, str]], tokenizer: str | None = None
    ) -> None:
        self._sources, self._given = dict(sources), tokenizer
        self.url = ", ".join(dict.fromkeys(dataset.url for dataset, _ in sources.values()))
        self._ours = {
            name: dataset for name, (dataset, _) in sources.items() if isinstance(dataset, Dataset)
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
        """`"<split>/<source>"` of each source, in the splits that its dataset has it in."""
        return [
            f"{split}/{name}"
            for name, (dataset, there) in self._sources.items()
            for split, sources in dataset.splits.items()
            if there in sources
        ]

    @property
    def eod_id(self) -> int | None:
        """The token that ends documents, where all of them say the same."""
        known = {dataset.eod_id for dataset, _ in self._sources.values()}
        return known.pop() if len(known) == 1 else None

    def _open(self, name: str) -> Documents:
        return self._open_generation(name, None)

    def _open_generation(self, name: str, generation: int | None) -> Documents:
        split, _, here = name.partition("/")
        dataset, there = self._sources[here]
        return dataset.source(split, there, generation=generation)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """That of our datasets, or the one that was given."""
        from jaxdata import tokenizers

        if self._ours:
            return next(iter(self._ours.values())).tokenizer
        if self._given is None:
            raise InputError(
                f"none of {', '.join(self._sources)} says which tokenizer made it: give it, as "
                "`tokenizer: tiktoken:gpt2` in a config"
            )
        return tokenizers.load(self._given)


def source_meant(dataset: Sources, name: str, source: str | None = None) -> str:
    """The source of a dataset that is called `name` here.

    Args:
        dataset: where it is.
        name: the name of it here.
        source: the name of it there; None for the same name, or the only one there.
    """
    known = sorted({name for names in dataset.splits.values() for name in names})
    wanted = source or name
    if wanted in known:
        return wanted
    if source is None and len(known) == 1:
        return known[0]
    raise InputError(
        f"{wanted!r} is no source of {dataset.url}, which has {', '.join(known) or 'none'}: say "
        f"which is meant, {name}: {{dataset: {dataset.url}, source: …}}"
    )
