"""Training batches straight from files or records of text, without a dataset.

Blocks of documents are tokenized, shuffled and packed one after the other; batches, state, end.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata import tokenizers
from jaxdata.base.errors import InputError, digest, shortened
from jaxdata.base.lazy import cached_property
from jaxdata.base.numbers import Positive, validated
from jaxdata.base.processes import Pool, available_cores
from jaxdata.base.ragged import in_runs
from jaxdata.converter.inputs.discovery import Inputs, find_inputs
from jaxdata.converter.inputs.given_records import files_or_records
from jaxdata.converter.parameters import Options, make_parameters
from jaxdata.converter.statistics import Document
from jaxdata.converter.tasks import Dropped, Encoded, Task
from jaxdata.converter.worker import Job
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.feed.ahead import Ahead, made_ahead
from jaxdata.feed.batches import Batches, HostPlacement, Placement, Stream, StreamReader
from jaxdata.feed.layouts import Layout, Named, layout as find_layout
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.state import check_run, make_state, parse_state, refused
from jaxdata.rows.packing.packed_rows import ConcatenatedRows, PackedRows
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.reading import assemble
from jaxdata.rows.table import Batch
from jaxdata.streaming.readers import FileSource, InputCounts, Position, RecordSource, TextSource
from jaxdata.tokenizers import Tokenizer

if TYPE_CHECKING:
    import jax

_DATASET_OPTIONS = {"keep", "split_ratio", "split_by", "record_tokens", "exact_hash", "minhash"}
_CHARACTERS = 16 * 2**20  # of a block, about; bounds the memory
_SMALLER_BLOCKS = 4  # so that batches come soon: each is half as large as the next


@dataclass(frozen=True)
class TextRecipe:
    """Everything that decides which row is the i-th of a stream of text."""

    source: TextSource
    tokenizer: Tokenizer
    options: Options
    packing: PackSettings
    buffer: int
    """documents of a block, at most"""
    shard: tuple[int, int]
    """(i, n): every n-th document, beginning with the i-th"""
    epochs: int | None
    """passes over the text; None for endless"""

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
            files=list(self.source.files),
            parameters=make_parameters(list(self.source.files), self.tokenizer, self.options),
            tokenizer_files=self.tokenizer.files(),
            stop_at_bad=False,
        )

    @cached_property
    def task(self) -> Task:
        """What takes the documents out of records."""
        return self.job.task(self.job.tokenizer())

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The named facts behind a state's fingerprint."""
        parameters = self.job.parameters
        return {
            **self.source.identity(parameters.inputs),
            "tokenizer": digest(parameters.tokenizer.model_dump(exclude={"name"}))[:8],
            **{key: fact for key, fact in parameters.own().items() if key != "unit_bytes"},
            **self.packing.facts(),
            "buffer": self.buffer,
            "shard": list(self.shard),
        }


_CHUNK_DOCUMENTS = 256
_CHUNK_CHARACTERS = 2**18

Answer = Sequence[Encoded | Dropped]
Encode = Callable[[Iterator[Sequence[Any]]], Iterator[Answer]]
"""Tokenizes chunks of documents, in order."""


class _Block(NamedTuple):
    """The rows of one block, and where the next one begins."""

    start: Position
    rows: PackedRows
    after: Position


def _batches(
    blocks: Iterator[_Block], size: int, first: int
) -> Iterator[tuple[tuple[Position, int], Batch]]:
    """Batches from a row of the first block on; the last one is completed with padding."""
    whole = ((block, row) for block in blocks for row in range(len(block.rows)))
    rows = islice(whole, first, None)
    while some := list(islice(rows, size)):
        tables = list({id(block): block.rows for block, _ in some}.values())
        begin = some[0][1]  # the rows of a batch follow each other
        numbers = begin + np.arange(len(some))
        batch = next(assemble(ConcatenatedRows(tables), [numbers], size))
        block, last = some[-1]
        left = last + 1 < len(block.rows)
        yield (replace(block.start, row=last + 1) if left else block.after, len(some)), batch


def _blocks(
    recipe: TextRecipe, encode: Encode, start: Position, counts: InputCounts
) -> Iterator[_Block]:
    """The blocks from the beginning of one on, over all passes."""
    epochs, first = recipe.epochs, recipe.source.start
    while epochs is None or start.epoch < epochs:
        whole, rows = start == replace(first, epoch=start.epoch), 0
        for documents, after in _gathered(recipe, start, counts):
            # The name keys the block's order of documents and rows.
            name = f"epoch {start.epoch}, block {start.block}"
            packed = PackedRows(_tokenized(documents, encode, name, counts), recipe.packing)
            yield _Block(start, packed, after)
            start, rows = after, rows + len(packed)
        if whole and not rows:
            part, parts = recipe.shard
            here = f"shard ({part}, {parts}) of " if parts > 1 else ""
            raise InputError(
                f"{here}{recipe.source} hold nothing to train on: {counts}. Are these the right "
                "ones, and is text_key right?"
            )
        start = replace(first, epoch=start.epoch + 1)


def _gathered(
    recipe: TextRecipe, start: Position, counts: InputCounts
) -> Iterator[tuple[list[Document], Position]]:
    """The documents of each block to the end of the epoch, and where the next block begins."""
    part, parts = recipe.shard
    block, after = start.block, start
    held: list[Document] = []
    characters = 0
    for found, after in recipe.source.documents(recipe.job, recipe.task, start, counts):
        mine = found[(part - after.document + len(found)) % parts :: parts]
        held += mine
        characters += sum(document.characters for document in mine)
        share = max(0, _SMALLER_BLOCKS - block)
        if held and (len(held) >= recipe.buffer >> share or characters >= _CHARACTERS >> share):
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


def _chunks(documents: list[Document]) -> Iterator[list[Any]]:
    """What is tokenized at a time: so many characters, and not too many documents."""
    size = attrgetter("characters")
    for chunk, _ in in_runs(documents, size, lambda: _CHUNK_CHARACTERS, _CHUNK_DOCUMENTS):
        yield [document.content for document in chunk]


def _encoder(job: Job) -> Callable[[Sequence[Any]], Answer]:
    """What tokenizes a chunk of documents in this process."""
    task, limits = job.task(job.tokenizer()), job.parameters

    def encode(documents: Sequence[Any]) -> Answer:
        encoded = limits.of_tokens(task.encode(documents))
        return [
            piece
            for one in encoded
            for piece in ([one] if isinstance(one, Dropped) else one[0].pieces())
        ]

    return encode


class TextStream(StreamReader, grain.DatasetIterator[Any]):
    """A one-pass iterator of batches from text. Made by :func:`stream_text`."""

    _what = "stream"

    def __init__(
        self,
        recipe: TextRecipe,
        placement: Placement,
        layout: Layout,
        num_workers: int,
        prefetch: int,
        on_devices: bool,
    ) -> None:
        super().__init__(on_devices)
        self._recipe, self._placement, self._layout = recipe, placement, layout
        self._num_workers, self._prefetch = num_workers, prefetch
        self._begin_at(recipe.source.start, 0)

    def _begin_at(self, position: Position, next_row: int) -> None:
        self._position, self._counts = position, InputCounts()
        self.next_row = next_row
        """Rows delivered here before the next one, over all passes."""

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

    def _end(self) -> BaseException:
        if self._counts.left_out and not self._ended:
            warnings.warn(f"stream_text: {self.report()}", stacklevel=3)
        return StopIteration()

    def _advance(self, note: tuple[Position, int]) -> None:
        self._position, rows = note
        self.next_row += rows

    def _open(self) -> Batches:
        recipe, placement, layout = self._recipe, self._placement, self._layout
        start, workers = self._position, self._num_workers
        encoder = partial(_encoder, recipe.job.for_workers())
        pool = Pool(encoder, workers=workers)
        encode = pool.map if workers else partial(map, encoder())
        made = _blocks(recipe, encode, replace(start, row=0), self._counts)
        blocks = Ahead(made, lambda ready: not ready, pool.close)

        def placed(pair: tuple[Any, Batch]) -> tuple[Any, Any]:
            return pair[0], placement.place(layout(pair[1]))

        batches = map(placed, _batches(blocks, len(placement.rows), start.row))
        stream: Batches = Stream(batches, blocks.close)
        return made_ahead(stream, self._prefetch) if self._prefetch else stream

    def report(self) -> str:
        """What was read so far, some of it ahead of the batches, and what was left out."""
        return str(self._counts)

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values: positions, no data. Each shard has its own."""
        with self.lock:
            position = asdict(self._position)
            return make_state(self._recipe.identity, self.next_row, position=position)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; raises StateMismatch naming every fact that differs.

        The buffer that holds the next row is read and tokenized again; what is before it is
        skipped, which for a compressed file means decompressing it, and for records counting them.
        """
        saved = parse_state(state)
        check_run(saved, self._recipe.identity, free="batch size, workers and prefetch")
        source = self._recipe.source
        position = _position(saved.position, source.start, len(source.files))
        with self._moving():
            self._begin_at(position, saved.next_row)

    def reset(self) -> None:
        """Go back to the first row."""
        with self._moving():
            self._begin_at(self._recipe.source.start, 0)


def _position(facts: Any, start: Position, files: int) -> Position:
    """The position in a state, with the fields and types of the first one."""
    expected = {name: type(value) for name, value in asdict(start).items()}
    if (
        not isinstance(facts, dict)
        or {name: type(value) for name, value in facts.items()} != expected
        or any(isinstance(each, int) and not 0 <= each < 2**63 for each in facts.values())
        or facts.get("file", 0) >= max(files, 1)
    ):
        raise refused(
            f"the loader state has position {shortened(repr(facts), 300)}: expected whole numbers "
            f"from 0 on as {', '.join(expected)}; there are {files} files"
        )
    return replace(start, **facts)


_PACKING = ("strategy", "overlap", "positions", "max_segments", "multiple")


@validated
def stream_text(
    files: Inputs | Iterable[Any],
    *,
    tokenizer: str | Tokenizer,
    seq_len: int,
    batch_size: int = 32,
    seed: int = 0,
    buffer: Positive = 10_000,
    shuffle: bool = True,
    epochs: int | None = 1,
    sharding: "jax.sharding.Sharding | None" = None,
    shard: tuple[int, int] | None = None,
    num_workers: int | None = None,
    prefetch: int = 2,
    layout: Named = "jaxdata",
    **options: Any,
) -> TextStream:
    """Stream training batches from text, without converting it first.

    For quick experiments. Documents are read in the order of the text, tokenized by worker
    processes, and shuffled and packed one buffer at a time. Every token is trained on once a pass.

    Args:
        files: files, folders or globs of everything that `jaxdata convert` reads. Or any iterable
            of records, which are texts or dicts as lines of JSON would give them (strings in a list
            are names of files): a Hugging Face `Dataset` or `IterableDataset`, a list of dicts, a
            generator, a pandas `DataFrame`, a `pyarrow.Table`. It must give the same records in the
            same order whenever it is read: to resume, it is read again up to the record. A
            generator can be read only once.
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        seq_len: slots of a row.
        batch_size: rows of the global batch; the last batch is completed with padding.
        seed: root of every order.
        buffer: documents that are shuffled and packed together; fewer if they hold more than 16
            million characters, and in the first four buffers, so that batches come soon.
        shuffle: False for the order of the text.
        epochs: passes over the text; None for endless.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for `jax.Array`s; or:
        shard: `(i, n)`: every n-th document, and batches of `batch_size / n` rows, in numpy.
        num_workers: processes that tokenize; 0 for none, None for all cores but one.
        prefetch: batches made ahead by a background thread; 0 for none.
        layout: names and masks of a batch, as for a Loader.
        **options: how rows are packed, as for `jaxdata.pack`: `strategy`, `overlap`, `positions`,
            `max_segments`, `multiple`; and how text is read, as for `jaxdata.convert`: `text_key`,
            `bos`, `task` and its settings, `transform`, cleaning, limits of length.

    Returns:
        An iterator of batches as a Loader's, with `get_state`, `set_state`, `reset` and `report`.
        Hosts may end after different numbers of steps: use `epochs=None`, or convert the text.

    >>> for batch in stream_text("notes.jsonl", tokenizer="bytes", seq_len=64):  # doctest: +SKIP
    ...     print(batch["inputs"].shape)
    """
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    workers = max(1, available_cores() - 1) if num_workers is None else num_workers
    LoaderSection.checked(batch_size=batch_size, num_workers=workers, prefetch=prefetch)
    packing = {name: options.pop(name) for name in _PACKING if name in options}
    placement, part = _placement(sharding, shard, batch_size, seq_len)
    recipe = TextRecipe(
        _source(files, epochs),
        loaded,
        options,
        PackSettings.checked(seq_len=seq_len, seed=seed, shuffle=shuffle, **packing),
        buffer,
        part,
        epochs,
    )
    spec = tokenizer if isinstance(tokenizer, str) else loaded.name
    warnings.warn(
        f"stream_text reads and tokenizes {recipe.source} again in every pass and run. To read "
        "text twice, or on several hosts, convert it once: jaxdata convert "
        f"{recipe.source.inputs} --output data/mine --source text --tokenizer {spec}",
        stacklevel=3,  # `validated` is one of them
    )
    return TextStream(
        recipe, placement, find_layout(layout), workers, prefetch, on_devices=sharding is not None
    )


def _placement(
    sharding: "jax.sharding.Sharding | None",
    shard: tuple[int, int] | None,
    batch_size: int,
    seq_len: int,
) -> tuple[Placement, tuple[int, int]]:
    """Where batches go, and which part of the documents they are made of."""
    if sharding is None:
        return HostPlacement(batch_size, shard or (0, 1)), shard or (0, 1)
    if shard is not None:
        raise InputError("use sharding= (jax arrays) or shard=(i, n) (numpy), not both")
    from jaxdata.feed.device import DevicePlacement

    placement = DevicePlacement(sharding, batch_size, seq_len)
    rows = placement.rows
    part = int(rows[0]) // len(rows), batch_size // len(rows)
    if not np.array_equal(rows, HostPlacement(batch_size, part).rows):
        raise InputError(
            f"{sharding} gives this process rows that are not one n-th part of a batch: use a mesh "
            "whose first axis is data, or convert the text"
        )
    return placement, part


def _source(given: Any, epochs: int | None) -> TextSource:
    """Files where names of files are given, else records."""
    files, records = files_or_records(given, "stream_text")
    return FileSource(find_inputs(files)) if records is None else RecordSource(records, epochs)
