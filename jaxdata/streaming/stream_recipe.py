"""What decides the rows of a stream of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxdata.converter.inputs.compression import EXPANSION
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Options, make_parameters
from jaxdata.converter.tasks import Task
from jaxdata.errors import InputError
from jaxdata.facts import digest
from jaxdata.packing.settings import PackSettings
from jaxdata.streaming.text_source import TextSource
from jaxdata.tokenizers import Tokenizer

_DATASET_OPTIONS = {
    *("keep", "split_ratio", "split_by", "split_contiguous", "record_tokens", "unit_bytes"),
}
_SMALLER_BLOCKS = 4  # at the beginning, each half as large as the next


@dataclass(frozen=True)
class Buffer:
    """What decides which documents make up a block."""

    documents: int
    """at most"""
    characters: int
    """about; bounds the memory"""
    shard: tuple[int, int]
    """(i, n): every n-th document, beginning with the i-th"""
    epochs: int | None
    """passes over the text; None for endless"""

    def is_full(self, block: int, documents: int, characters: int) -> bool:
        """Whether a block ends here; the first ones are smaller, so that batches come soon."""
        share = max(0, _SMALLER_BLOCKS - block)
        return documents >= self.documents >> share or characters >= self.characters >> share


@dataclass(frozen=True)
class TextRecipe:
    """Everything that decides which row is the i-th of a stream of text."""

    source: TextSource
    tokenizer: Tokenizer
    options: Options
    buffer: Buffer
    packing: PackSettings

    def __post_init__(self) -> None:
        if unusable := sorted(_DATASET_OPTIONS & self.options.keys()):
            raise InputError(f"{unusable[0]} is for datasets only; a stream of text has none")
        self.job.parameters.check("train")
        if self.task.streams != ("",):
            name = self.job.parameters.task.name
            raise InputError(f"the task {name!r} makes several sources of a record: convert it")
        self.job.check_tables(self.task)

    @cached_property
    def job(self) -> Job:
        return Job(
            url="",
            split="train",
            source="text",
            files=self.source.files,
            parameters=make_parameters(self.source.files, self.tokenizer, self.options),
            tokenizer_files=self.tokenizer.files(),
            stop_at_bad=False,
            max_expansion=EXPANSION,
        )

    @cached_property
    def task(self) -> Task:
        """What takes the documents out of records."""
        return self.job.task(self.job.tokenizer(), self.job.cleaner())

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The named facts behind a state's fingerprint."""
        parameters = self.job.parameters
        return {
            **self.source.identity(parameters.inputs),
            "tokenizer": digest(parameters.tokenizer.model_dump(exclude={"name"}))[:8],
            **{key: fact for key, fact in parameters.own().items() if key != "unit_bytes"},
            **self.packing.facts(),
            "buffer": self.buffer.documents,
            "shard": list(self.buffer.shard),
        }
