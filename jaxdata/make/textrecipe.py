"""What decides the rows of a stream of text, and opening it anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.parameters import digests
from jaxdata.convert.tasks import Settings
from jaxdata.errors import InputError
from jaxdata.feed.streams import AheadStream
from jaxdata.format.manifest import digest
from jaxdata.make.documents import Reader, Tally
from jaxdata.make.encoding import Encoder, TaskSpec
from jaxdata.make.textbatches import BatchStream, Cursor
from jaxdata.make.textblocks import BlockStream, Buffer
from jaxdata.rows.settings import PackSettings
from jaxdata.tokenizers import Tokenizer

__all__ = ["TextRecipe"]


@dataclass(frozen=True)
class TextRecipe:
    """Everything that decides which row is the i-th of a stream of text.

    Attributes:
        files: the inputs, sorted.
        tokenizer: text to ids.
        task: what becomes of a record.
        text_key: the field that a text file's text is.
        buffer: which documents are shuffled and packed together.
        packing: how.
    """

    files: list[InputFile]
    tokenizer: Tokenizer
    task: Settings
    text_key: str
    buffer: Buffer
    packing: PackSettings

    def __post_init__(self) -> None:
        if self.task.bos and self.tokenizer.bos_id is None:
            raise InputError(
                f"tokenizer {self.tokenizer.name!r} has no begin-of-sequence token that jaxdata "
                "knows; name it with tokenizers.load(..., bos=...), or leave out bos=True"
            )
        if self._reader.task.streams != ("",):
            raise InputError(
                f"the task {self.task.name!r} makes several sources of a record: convert it instead"
            )
        self._reader.check()

    @cached_property
    def _spec(self) -> TaskSpec:
        return TaskSpec.of(self.task, self.tokenizer)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.files, self._spec.make(), self.text_key)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The named facts behind a state's fingerprint."""
        return {
            "files": len(self.files),
            "inputs": digest(digests(self.files))[:8],
            "tokenizer": digest(self._spec.tokenizer.model_dump(exclude={"name"}))[:8],
            **self.task.model_dump(mode="json"),
            **asdict(self.packing),
            "buffer": self.buffer.documents,
            "shard": list(self.buffer.shard),
        }

    def batches(self, size: int, cursor: Cursor, workers: int, tally: Tally) -> BatchStream:
        """Batches of `size` rows from a cursor on; the next block is made ahead by a thread."""
        encoder = Encoder(self._spec, workers)
        blocks = BlockStream(self._reader, encoder, self.buffer, self.packing, cursor.start, tally)
        return BatchStream(AheadStream(blocks, 1), size, cursor)
