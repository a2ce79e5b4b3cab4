"""Training batches straight from text, without a dataset: for quick experiments."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata import tokenizers
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.errors import InputError
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.layouts import Layout
from jaxdata.feed.layouts import layout as find_layout
from jaxdata.feed.state import STATE_VERSION, check_state, fingerprint
from jaxdata.feed.streams import AheadStream, PlacedStream, Stream
from jaxdata.make.documents import Tally
from jaxdata.make.textbatches import Cursor
from jaxdata.make.textblocks import Buffer
from jaxdata.make.textrecipe import TextRecipe
from jaxdata.processes import available_cores
from jaxdata.rows.settings import PackSettings
from jaxdata.tokenizers import Tokenizer

if TYPE_CHECKING:
    import jax

__all__ = ["TextStream", "stream_text"]

_CHARACTERS = 16 * 2**20
_FREE = "batch size, workers and prefetch"


class TextStream(grain.DatasetIterator[Any]):
    """A one-pass iterator of batches from text. Made by :func:`stream_text`."""

    def __init__(
        self,
        recipe: TextRecipe,
        placement: Placement,
        layout: Layout,
        num_workers: int,
        prefetch: int,
    ) -> None:
        super().__init__()
        self._recipe, self._placement, self._layout = recipe, placement, layout
        self._num_workers, self._prefetch = num_workers, prefetch
        self._cursor, self._tally = Cursor(), Tally()
        self._stream: Stream | None = None
        self._finalizer: Any = None
        self._ended = False

    @property
    def next_row(self) -> int:
        """Rows delivered here before the next one, over all passes."""
        return self._cursor.next_row

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes of each id, int32 (vocab_size,): what bits per byte are counted with."""
        return self._recipe.tokenizer.token_bytes

    def __str__(self) -> str:
        return f"TextStream({len(self._recipe.files)} files, at row {self.next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this stream is at its end: it passes over its files as often as it was told. To "
                "start again call reset()"
            )
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        try:
            behind: Any
            behind, batch = next(self._started())
        except StopIteration:
            if self._tally.left_out and not self._ended:
                warnings.warn(f"stream_text: {self.report()}", stacklevel=2)
            self._ended = True
            raise
        self._cursor = behind
        return batch

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = self._opened()
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def _opened(self) -> Stream:
        placement, layout = self._placement, self._layout
        made = self._recipe.batches(
            len(placement.rows), self._cursor, self._num_workers, self._tally
        )
        placed = PlacedStream(made, lambda _, batch: placement.place(layout(batch)))
        return AheadStream(placed, self._prefetch) if self._prefetch else placed

    def start_prefetch(self) -> None:
        """Begin to read before the first batch is asked for."""
        self._started()

    def report(self) -> str:
        """What was read so far, some of it ahead of the batches, and what was left out."""
        tally = self._tally
        said = f"{tally.documents:,} documents, {tally.tokens:,} tokens"
        if tally.left_out:
            reasons = [f"{count:,} {reason}" for reason, count in dict(tally.left_out).items()]
            said += f"; left out: {', '.join(reasons)}"
        return said + (f"; the first is {tally.first_bad}" if tally.first_bad else "")

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values: positions, no data. Each shard has its own."""
        run = self._recipe.identity
        return {
            "version": STATE_VERSION,
            "fingerprint": fingerprint(run),
            "next_row": self.next_row,
            "position": self._cursor.facts(),
            "run": dict(run),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; raises StateMismatch naming every fact that differs.

        The buffer that the next row is in is read and tokenised again; the file before it is
        passed over, which for a compressed one means to decompress it.
        """
        check_state(state, self._recipe.identity, free=_FREE)
        self._move(Cursor.of(state.get("position"), state["next_row"]))

    def reset(self) -> None:
        """Go back to the first row."""
        self._move(Cursor())

    def _move(self, cursor: Cursor) -> None:
        self._assert_not_closed()
        self._drop_stream()
        self._cursor, self._tally, self._ended = cursor, Tally(), False

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._finalizer()
            self._stream = None

    def close(self) -> None:
        """Stop threads and worker processes; the stream cannot be used afterwards."""
        if not self._closed:
            self._drop_stream()
        super().close()


def stream_text(
    files: Inputs,
    *,
    tokenizer: str | Tokenizer,
    seq_len: int,
    batch_size: int = 32,
    strategy: str = "best_fit",
    overlap: int = 0,
    positions: str = "segment",
    max_segments: int | None = None,
    seed: int = 0,
    buffer: int = 10_000,
    shuffle: bool = True,
    epochs: int | None = 1,
    sharding: jax.sharding.Sharding | None = None,
    shard: tuple[int, int] | None = None,
    num_workers: int | None = None,
    prefetch: int = 2,
    layout: str | Layout = "jaxdata",
    **options: Any,
) -> TextStream:
    """Stream training batches from text files that were not converted.

    For quick experiments. Documents are read in the order of the files, tokenised by worker
    processes, and shuffled and packed a buffer at a time. Every token is trained on once a pass.

    Args:
        files: files, folders or globs, all that `jaxdata convert` reads.
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        seq_len: slots of a row.
        batch_size: rows of the global batch; the last one is completed with padding.
        strategy: as for `jaxdata.pack`; likewise `overlap`, `positions` and `max_segments`.
        overlap: tokens a window repeats of the one before, without loss.
        positions: "segment" restarts at each segment, "row" runs along the row.
        max_segments: most segments in a row; None for no limit.
        seed: root of every order, and of what a task draws.
        buffer: documents that are shuffled and packed together; fewer where they hold more than
            16 million characters, and in the first four, so that batches come soon.
        shuffle: False for the order of the files.
        epochs: passes over the files; None without end.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for `jax.Array`s; or:
        shard: `(i, n)`: every n-th document, and batches of `batch_size / n` rows, in numpy.
        num_workers: processes that tokenise; 0 for none, None for one a core but one.
        prefetch: batches made ahead by a background thread; 0 for none.
        layout: whose names and masks a batch has, as for a Loader.
        **options: what becomes of the text, as for `jaxdata.convert`: `text_key`, `bos`, `task`
            and its settings, `transform`, cleaning, limits of length.

    Returns:
        An iterator of batches as a Loader's, with `get_state`, `set_state`, `reset` and `report`.
        Parts of several hosts end after a different number of steps: let them read without end
        (`epochs=None`), or convert the text.

    >>> for batch in stream_text("notes.jsonl", tokenizer="bytes", seq_len=64):  # doctest: +SKIP
    ...     print(batch["inputs"].shape)
    """
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    for name, count, least in (("buffer", buffer, 1), ("prefetch", prefetch, 0)):
        if count < least:
            raise InputError(f"{name}={count}: expected {least} or more")
    placement, part = _placed(sharding, shard, batch_size, seq_len)
    recipe = TextRecipe(
        find_inputs(files),
        loaded,
        _with_seed(options, seed),
        Buffer(buffer, _CHARACTERS, part, epochs),
        PackSettings(seq_len, strategy, overlap, seed, positions, max_segments, shuffle=shuffle),
    )
    workers = max(1, available_cores() - 1) if num_workers is None else num_workers
    _advise(recipe, tokenizer)
    return TextStream(recipe, placement, find_layout(layout), workers, prefetch)


def _with_seed(options: dict[str, Any], seed: int) -> Any:
    """The options of the task, with the seed where it draws anything."""
    task = options.get("task", "lm")
    draws = isinstance(task, str) and task in ("lm", "fim")
    return options | {"seed": seed} if draws else options


def _placed(
    sharding: jax.sharding.Sharding | None,
    shard: tuple[int, int] | None,
    batch_size: int,
    seq_len: int,
) -> tuple[Placement, tuple[int, int]]:
    """Where batches go, and which part of the documents they are made of."""
    if sharding is None:
        return HostPlacement(batch_size, shard or (0, 1)), shard or (0, 1)
    if shard is not None:
        raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")
    from jaxdata.feed.device import DevicePlacement

    placement = DevicePlacement(sharding, batch_size, seq_len)
    rows = placement.rows
    part = int(rows[0]) // len(rows), batch_size // len(rows)
    if not np.array_equal(rows, HostPlacement(batch_size, part).rows):
        raise InputError(
            f"the rows of a batch that this process holds are no n-th part of it in {sharding}: "
            "text can be streamed to a mesh whose first axis is data, or convert it"
        )
    return placement, part


def _advise(recipe: TextRecipe, tokenizer: str | Tokenizer) -> None:
    """Say once when converting pays."""
    megabytes = sum(file.size for file in recipe.files) / 1e6
    spec = tokenizer if isinstance(tokenizer, str) else recipe.tokenizer.name
    first = Path(recipe.files[0].path).name
    warnings.warn(
        f"stream_text reads and tokenizes {megabytes:,.1f} MB anew in every pass and every run. "
        "To read it twice, or on several hosts, convert it once: jaxdata convert "
        f"{first}{' …' * (len(recipe.files) > 1)} --output data/mine --source text "
        f"--tokenizer {spec}",
        stacklevel=3,
    )
