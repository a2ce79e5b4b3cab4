"""The iterator of a stream of text: blocks of documents packed and shuffled, batches, its state."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.facts import digest
from jaxdata.base.processes import Pool, answer_tasks
from jaxdata.converter.document_batch import Document
from jaxdata.converter.inputs.streams import EXPANSION
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Options, make_parameters
from jaxdata.converter.tasks.base import Dropped, Encoded, Task
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.feed.batches import OpenStream, PlacedStream, Placement, Stream
from jaxdata.feed.layouts import Layout
from jaxdata.feed.state import (
    STATE_VERSION,
    check_run,
    fingerprint,
    is_row,
    parse_state,
    refused,
    sealed,
    shown,
)
from jaxdata.feed.streams.ahead import AheadStream
from jaxdata.feed.trees import refuse_copy
from jaxdata.rows.arrays import assemble
from jaxdata.rows.mixing.concatenated import ConcatenatedRows
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import Batch
from jaxdata.streaming.readers import InputCounts, Position, TextSource
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


_FREE = "batch size, workers and prefetch"


class TextStream(grain.DatasetIterator[Any]):
    """A one-pass iterator of batches from text. Made by :func:`stream_text`."""

    __reduce__ = refuse_copy

    def __init__(
        self,
        recipe: TextRecipe,
        placement: Placement,
        layout: Layout,
        num_workers: int,
        prefetch: int,
        on_devices: bool,
    ) -> None:
        super().__init__()
        self._recipe, self._placement, self._layout = recipe, placement, layout
        self._num_workers, self._prefetch = num_workers, prefetch
        self._stream = OpenStream(on_devices)
        self._begin_at(recipe.source.start, 0)

    def _begin_at(self, position: Position, next_row: int) -> None:
        self._position, self._next_row = position, next_row
        self._counts, self._ended = InputCounts(), False

    @property
    def next_row(self) -> int:
        """Rows delivered here before the next one, over all passes."""
        return self._next_row

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Bytes of each id as text, int32 (vocab_size,), for bits per byte."""
        return self._recipe.tokenizer.token_bytes

    def __repr__(self) -> str:
        return f"TextStream({self._recipe.source}, at row {self.next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this stream is at its end: it has finished its `epochs` passes. To start again "
                "call reset()"
            )
        return self

    def __next__(self) -> Any:
        with self._stream.lock:
            self._assert_not_closed()
            try:
                if self._ended:
                    raise StopIteration
                return self._stream.next(self._open, self._advance)
            except StopIteration:
                self._assert_not_closed()
                if self._counts.left_out and not self._ended:
                    warnings.warn(f"stream_text: {self.report()}", stacklevel=2)
                self._ended = True
                raise

    def _advance(self, after: tuple[Position, int]) -> None:
        self._position, rows = after
        self._next_row += rows

    def _open(self) -> Stream:
        placement, layout = self._placement, self._layout
        made = open_batches(
            self._recipe, len(placement.rows), self._position, self._num_workers, self._counts
        )
        placed = PlacedStream(made, lambda _, batch: placement.place(layout(batch)))
        return AheadStream(placed, self._prefetch) if self._prefetch else placed

    def start_prefetch(self) -> None:
        """Begin to read before the first batch is asked for."""
        with self._stream.lock:
            self._stream.get(self._open)

    def report(self) -> str:
        """What was read so far, some of it ahead of the batches, and what was left out."""
        return str(self._counts)

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values: positions, no data. Each shard has its own."""
        run = self._recipe.identity
        with self._stream.lock:
            return sealed(
                {
                    "version": STATE_VERSION,
                    "fingerprint": fingerprint(run),
                    "next_row": self.next_row,
                    "position": asdict(self._position),
                    "run": dict(run),
                }
            )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; raises StateMismatch naming every fact that differs.

        The buffer that holds the next row is read and tokenized again; what is before it is
        skipped, which for a compressed file means decompressing it, and for records without a
        state of their own counting them.
        """
        saved = parse_state(state)
        check_run(saved, self._recipe.identity, free=_FREE)
        position = _position(
            saved.position, self._recipe.source.start, len(self._recipe.source.files)
        )
        self._move(position, saved.next_row)

    def reset(self) -> None:
        """Go back to the first row."""
        self._move(self._recipe.source.start, 0)

    def _move(self, position: Position, next_row: int) -> None:
        with self._stream.lock:
            self._assert_not_closed()
            self._stream.close()
            self._begin_at(position, next_row)

    def close(self) -> None:
        """Stop threads and worker processes; the stream cannot be used afterwards."""
        super().close()
        self._stream.close()  # a thread that waits for a batch lets go of the lock
        with self._stream.lock:
            self._stream.close()


def _position(facts: Any, start: Position, files: int) -> Position:
    """The position in a state, with the fields and types of the first one."""
    expected, said = asdict(start), f"the loader state has position {shown(facts)}"
    if not isinstance(facts, dict) or facts.keys() != expected.keys():
        raise refused(f"{said}: expected {', '.join(expected)}")
    for name, fact in facts.items():
        number = isinstance(expected[name], int)
        if not (is_row(fact) if number else isinstance(fact, str)):
            wanted = "a whole number of at least 0" if number else "a string"
            raise refused(f"{said}: position.{name} is {shown(fact)}: expected {wanted}")
    if facts.get("file", 0) >= max(files, 1):
        raise refused(f"{said}: there are {files} files")
    return replace(start, **facts)
