"""Blocks of a stream of text: a buffer of documents, tokenised, packed and shuffled together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxdata.convert.batches import Document
from jaxdata.convert.tasks import Dropped, Encoded
from jaxdata.errors import InputError
from jaxdata.make.stream.documents import Place, Reader, Tally
from jaxdata.make.stream.encoding import Encoder
from jaxdata.rows.documents import ArrayDocuments
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.settings import PackSettings

__all__ = ["Block", "BlockStart", "BlockStream", "Buffer"]

_CHUNK_DOCUMENTS = 256
_CHUNK_CHARACTERS = 2**18
_SMALLER_BLOCKS = 4  # at the beginning, each half as large as the next


class BlockStart(NamedTuple):
    """Where a block begins: all that is needed to make it again."""

    epoch: int = 0
    block: int = 0
    """number in the epoch"""
    place: Place = Place()


class Block(NamedTuple):
    """The rows of one block, and where the next one begins."""

    start: BlockStart
    rows: PackedRows
    after: BlockStart


@dataclass(frozen=True)
class Buffer:
    """What decides which documents make up a block.

    Attributes:
        documents: most of them.
        characters: of all of them, about; what bounds the memory.
        shard: (i, n): every n-th document, beginning with the i-th.
        epochs: how often the files are read; None without end.
    """

    documents: int
    characters: int
    shard: tuple[int, int]
    epochs: int | None

    def is_full(self, block: int, documents: int, characters: int) -> bool:
        """Whether a block ends here; the first ones are smaller, so that batches come soon."""
        share = max(0, _SMALLER_BLOCKS - block)
        return documents >= self.documents >> share or characters >= self.characters >> share


class BlockStream:
    """The blocks of a stream from one on (see `Stream`); reads, tokenises and packs.

    Args:
        reader: where documents come from.
        encoder: what tokenises them; closed with the stream.
        buffer: which documents make up a block.
        packing: how they become rows.
        start: the block to begin with.
        tally: what is read is counted there.
    """

    def __init__(
        self,
        reader: Reader,
        encoder: Encoder,
        buffer: Buffer,
        packing: PackSettings,
        start: BlockStart,
        tally: Tally,
    ) -> None:
        self._reader, self._encoder, self._buffer = reader, encoder, buffer
        self._packing, self._tally = packing, tally
        self._blocks = self._from(start)
        self.close = encoder.close

    def __next__(self) -> tuple[Any, Block]:
        return None, next(self._blocks)

    def _from(self, start: BlockStart) -> Iterator[Block]:
        while self._buffer.epochs is None or start.epoch < self._buffer.epochs:
            whole, rows = start.place == Place(), 0
            for documents, after in self._gathered(start):
                stop = BlockStart(start.epoch, start.block + 1, after)
                block = Block(start, self._packed(start, documents), stop)
                yield block
                start, rows = stop, rows + len(block.rows)
            if whole and not rows:
                raise self._nothing()
            start = BlockStart(start.epoch + 1)

    def _nothing(self) -> InputError:
        """The error where a whole pass gives no row."""
        part, parts = self._buffer.shard
        here = f"shard ({part}, {parts}) of " if parts > 1 else ""
        reasons = [f"{count:,} {reason}" for reason, count in self._tally.left_out.items()]
        found = ", ".join([f"{self._tally.documents:,} documents", *reasons])
        return InputError(
            f"{here}{len(self._reader.job.files)} files hold nothing to train on: {found}"
            + (f"; the first is {self._tally.first_bad}" if self._tally.first_bad else "")
            + ". Are these the files, and is text_key right?"
        )

    def _gathered(self, start: BlockStart) -> Iterator[tuple[list[Document], Place]]:
        """The documents of each block to the end of the epoch, not yet tokenised."""
        part, parts = self._buffer.shard
        block, place = start.block, start.place
        held: list[Document] = []
        characters = 0
        for found in self._reader.documents(place, self._tally):
            for number, document in enumerate(found.documents, found.first):
                if number % parts == part:
                    held.append(document)
                    characters += document.characters
            place = found.after
            if held and self._buffer.is_full(block, len(held), characters):
                yield held, place
                block, held, characters = block + 1, [], 0
        if held:
            yield held, place

    def _packed(self, start: BlockStart, documents: list[Document]) -> PackedRows:
        encoded: list[Encoded] = []
        for answer in self._encoder.encode(_chunks(documents)):
            encoded += [one for one in answer if isinstance(one, Encoded)]
            self._tally.left_out.update(one.reason for one in answer if isinstance(one, Dropped))
        self._tally.documents += len(encoded)
        self._tally.tokens += sum(len(one.tokens) for one in encoded)
        # The name keys the block's order of documents and rows.
        return PackedRows(
            ArrayDocuments(
                [one.tokens for one in encoded],
                [one.mask for one in encoded if one.mask is not None] or None,
                name=f"epoch {start.epoch}, block {start.block}",
            ),
            self._packing,
        )


def _chunks(documents: list[Document]) -> Iterator[list[Any]]:
    """What is tokenised at a time."""
    chunk: list[Any] = []
    characters = 0
    for document in documents:
        chunk.append(document.content)
        characters += document.characters
        if characters >= _CHUNK_CHARACTERS or len(chunk) == _CHUNK_DOCUMENTS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
