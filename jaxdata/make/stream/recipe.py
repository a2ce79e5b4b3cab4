"""What decides the rows of a stream of text, and opening it anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.job import Job
from jaxdata.convert.options import Options, make_parameters
from jaxdata.convert.streams import EXPANSION
from jaxdata.errors import InputError
from jaxdata.feed.streams import AheadStream
from jaxdata.format.sealed import digest
from jaxdata.make.stream.batches import BatchStream, Cursor
from jaxdata.make.stream.blocks import BlockStream, Buffer
from jaxdata.make.stream.documents import Reader, Tally
from jaxdata.make.stream.encoding import Encoder
from jaxdata.rows.settings import PackSettings
from jaxdata.tokenizers import Tokenizer

__all__ = ["TextRecipe"]

_OF_DATASETS = {
    *("keep", "split_ratio", "split_by", "split_contiguous", "record_tokens", "unit_bytes"),
}


@dataclass(frozen=True)
class TextRecipe:
    """Everything that decides which row is the i-th of a stream of text.

    Attributes:
        files: the inputs, sorted.
        tokenizer: text to ids.
        options: what becomes of the text, as for a conversion.
        buffer: which documents are shuffled and packed together.
        packing: how.
    """

    files: list[InputFile]
    tokenizer: Tokenizer
    options: Options
    buffer: Buffer
    packing: PackSettings

    def __post_init__(self) -> None:
        if senseless := sorted(_OF_DATASETS & self.options.keys()):
            raise InputError(f"{senseless[0]} is of a dataset: there is none of a stream of text")
        self._job.parameters.check("train")
        if self._reader.task.streams != ("",):
            name = self._job.parameters.task.name
            raise InputError(f"the task {name!r} makes several sources of a record: convert it")
        self._job.check_tables(self._reader.task)

    @cached_property
    def _job(self) -> Job:
        """What a conversion of the same would do."""
        return Job(
            url="",
            split="train",
            source="text",
            files=self.files,
            parameters=make_parameters(self.files, self.tokenizer, self.options),
            tokenizer_files=self.tokenizer.files(),
            stop_at_bad=False,
            max_expansion=EXPANSION,
        )

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._job)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The named facts behind a state's fingerprint."""
        parameters = self._job.parameters
        return {
            "files": len(self.files),
            "inputs": digest(parameters.inputs)[:8],
            "tokenizer": digest(parameters.tokenizer.model_dump(exclude={"name"}))[:8],
            **{key: fact for key, fact in parameters.own().items() if key != "unit_bytes"},
            **asdict(self.packing),
            "buffer": self.buffer.documents,
            "shard": list(self.buffer.shard),
        }

    def batches(self, size: int, cursor: Cursor, workers: int, tally: Tally) -> BatchStream:
        """Batches of `size` rows from a cursor on; the next block is made ahead by a thread."""
        encoder = Encoder(replace(self._job, files=[]), workers)
        blocks = BlockStream(self._reader, encoder, self.buffer, self.packing, cursor.start, tally)
        return BatchStream(AheadStream(blocks, 1), size, cursor)
