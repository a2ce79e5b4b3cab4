"""Blocks of documents, tokenized, packed and shuffled together, and batches of their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from jaxdata.converter.document_batch import Document
from jaxdata.converter.job import Job
from jaxdata.converter.tasks import Dropped, Encoded
from jaxdata.documents.in_memory import ArrayDocuments
from jaxdata.errors import InputError
from jaxdata.feed.batches import Stream
from jaxdata.feed.streams.ahead_stream import AheadStream
from jaxdata.mixing.concatenated import ConcatenatedRows
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.processes import Pool, answer_tasks
from jaxdata.rows.arrays import assemble
from jaxdata.rows.table import Batch
from jaxdata.streaming.stream_recipe import TextRecipe
from jaxdata.streaming.text_source import InputCounts, Position

_CHUNK_DOCUMENTS = 256
_CHUNK_CHARACTERS = 2**18

Answer = Sequence[Encoded | Dropped]
Encode = Callable[[Iterator[Sequence[Any]]], Iterator[Answer]]
"""Tokenizes chunks of documents, in order."""


def open_batches(
    recipe: TextRecipe, size: int, start: Position, workers: int, counts: InputCounts
) -> Stream:
    """Batches of `size` rows from a position on; a thread makes the next block ahead.

    Each comes with the position after it and the number of its rows that are not padding. What is
    read is added to `counts`.
    """
    job = replace(recipe.job, files=[])
    pool = Pool(f"{__name__}:serve", job, workers=workers)
    encode = pool.map if workers else partial(map, _encoder(job))
    made = _blocks(recipe, encode, replace(start, row=0), counts)
    blocks = AheadStream(_Generated(made, pool.close), 1)
    return _Generated(_batches(blocks, size, start), blocks.close)


class _Generated:
    """A `Stream` of what a generator yields."""

    def __init__(self, items: Iterator[Any], close: Callable[[], None]) -> None:
        self._items, self.close = items, close

    def __next__(self) -> Any:
        return next(self._items)


class _Block(NamedTuple):
    """The rows of one block, and where the next one begins."""

    start: Position
    rows: PackedRows
    after: Position


def _batches(
    blocks: Any, size: int, start: Position
) -> Iterator[tuple[tuple[Position, int], Batch]]:
    """Batches from a position in the first block on; the last one is completed with padding."""
    held: deque[_Block] = deque()
    row = start.row
    while True:
        there = sum(len(block.rows) for block in held) - row
        while there < size and (block := next(blocks, None)):
            if len(block.rows):
                held.append(block)
                there += len(block.rows)
        rows = min(there, size)
        if rows <= 0:
            return
        table = ConcatenatedRows([block.rows for block in held])
        batch = next(assemble(table, [row + np.arange(rows)], size))
        row += rows
        after = held[0].start
        while held and row >= len(held[0].rows):
            row -= len(held[0].rows)
            after = held.popleft().after
        after = held[0].start if held else after
        yield (replace(after, row=row), rows), batch


def _blocks(
    recipe: TextRecipe, encode: Encode, start: Position, counts: InputCounts
) -> Iterator[_Block]:
    """The blocks from the beginning of one on, over all passes."""
    epochs, first = recipe.buffer.epochs, recipe.source.start
    while epochs is None or start.epoch < epochs:
        whole, rows = start == replace(first, epoch=start.epoch), 0
        for documents, after in _gathered(recipe, start, counts):
            # The name keys the block's order of documents and rows.
            name = f"epoch {start.epoch}, block {start.block}"
            packed = PackedRows(_tokenized(documents, encode, name, counts), recipe.packing)
            yield _Block(start, packed, after)
            start, rows = after, rows + len(packed)
        if whole and not rows:
            raise _nothing(recipe, counts)
        start = replace(first, epoch=start.epoch + 1)


def _gathered(
    recipe: TextRecipe, start: Position, counts: InputCounts
) -> Iterator[tuple[list[Document], Position]]:
    """The documents of each block to the end of the epoch, and where the next block begins."""
    part, parts = recipe.buffer.shard
    block, after = start.block, start
    held: list[Document] = []
    characters = 0
    for found, after in recipe.source.documents(recipe.job, recipe.task, start, counts):
        mine = found[(part - after.document + len(found)) % parts :: parts]
        held += mine
        characters += sum(document.characters for document in mine)
        if held and recipe.buffer.is_full(block, len(held), characters):
            block += 1
            yield held, replace(after, block=block)
            held, characters = [], 0
    if held:
        yield held, replace(after, block=block + 1)


def _tokenized(
    documents: list[Document], encode: Encode, name: str, counts: InputCounts
) -> ArrayDocuments:
    encoded: list[Encoded] = []
    for answer in encode(_chunks(documents)):
        encoded += [one for one in answer if isinstance(one, Encoded)]
        counts.left_out.update(one.reason for one in answer if isinstance(one, Dropped))
    counts.documents += len(encoded)
    counts.tokens += sum(len(one.tokens) for one in encoded)
    masks = [one.mask for one in encoded if one.mask is not None] or None
    return ArrayDocuments([one.tokens for one in encoded], masks, name=name)


def _nothing(recipe: TextRecipe, counts: InputCounts) -> InputError:
    """The error for a whole pass without a row."""
    part, parts = recipe.buffer.shard
    here = f"shard ({part}, {parts}) of " if parts > 1 else ""
    return InputError(
        f"{here}{recipe.source} hold nothing to train on: {counts}. Are these the right ones, and "
        "is text_key right?"
    )


def _chunks(documents: list[Document]) -> Iterator[list[Any]]:
    """What is tokenized at a time."""
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


def _encoder(job: Job) -> Callable[[Sequence[Any]], Answer]:
    """What tokenizes a chunk of documents in this process."""
    task, limits = job.task(job.tokenizer(), job.cleaner()), job.parameters.limits

    def encode(documents: Sequence[Any]) -> Answer:
        encoded = limits.of_tokens(task.encode(documents))
        return [
            piece
            for one in encoded
            for piece in ([one] if isinstance(one, Dropped) else one[0].pieces())
        ]

    return encode


def serve(connection: Connection, job: Job) -> None:
    """A worker process: tokenizes the chunks that it receives."""
    encode = _encoder(job)
    answer_tasks(connection, lambda documents, _: encode(documents))
