"""The loader: batches for one process of a training run, from one small state."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.batches import (
    BatchMaker,
    BatchSizes,
    DatasetBatches,
    TableBatches,
    shard_rows,
)
from jaxdata.feed.state import check_state, make_state
from jaxdata.feed.streams import AheadStream, DirectStream, Stream, WorkerStream
from jaxdata.rows.datasets import row_table, underlying_identity

if TYPE_CHECKING:
    import jax

__all__ = ["Loader"]


class Loader(grain.DatasetIterator[Any]):
    """A one-pass iterator of global batches, each process getting its part.

    Args:
        rows: what ``jaxdata.pack`` or ``mix`` returns, or any ``MapDataset`` of rows.
        batch_size: rows of the global batch, whatever the number of hosts.
        sharding: a ``jax.sharding.Sharding`` of (batch, seq): batches are global ``jax.Array``s,
            and this process reads only the rows that its devices hold. Or:
        shard: ``(i, n)``: numpy batches of the rows ``[i B / n, (i + 1) B / n)`` of each.
        num_workers: worker processes; 0 makes batches in this process.
        prefetch: batches made ahead by a background thread; 0 for none.
        drop_remainder: leave out a last batch that is not full, instead of completing it with
            rows that are all padding. Either way every host has the same number of steps.

    A delivered batch belongs to the caller. ``get_state()`` is small, plain JSON, the same on
    every host, and restores for any number of hosts, devices, workers, and any batch size.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> [batch["inputs"].shape for batch in jaxdata.Loader(rows, batch_size=2)]
    [(2, 2)]
    """

    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int,
        sharding: jax.sharding.Sharding | None = None,
        shard: tuple[int, int] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_remainder: bool = False,
    ) -> None:
        super().__init__()
        self._stream: Stream | None = None
        _require_whole(
            batch_size=(batch_size, 1), num_workers=(num_workers, 0), prefetch=(prefetch, 0)
        )
        if sharding is not None and shard is not None:
            raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")
        self._rows, self._table = rows, row_table(rows)
        self._run = underlying_identity(rows)
        self._total = len(rows)
        self._batch_size, self._drop_remainder = batch_size, drop_remainder
        self._num_workers, self._prefetch = num_workers, prefetch
        self._place, local = self._placement(sharding, shard or (0, 1))
        self._maker: BatchMaker = (
            DatasetBatches(rows, local) if self._table is None else TableBatches(self._table, local)
        )
        self._sizes = BatchSizes([(0, batch_size)])
        self._next_row = 0
        self._ended = False
        self._finalizer: Any = None
        self.wait_seconds = 0.0
        """seconds that ``next`` has waited for batches, in all"""

    def _placement(
        self, sharding: jax.sharding.Sharding | None, shard: tuple[int, int]
    ) -> tuple[Any, NDArray[np.int64]]:
        if sharding is None:
            return _as_it_is, shard_rows(self._batch_size, shard)
        from jaxdata.feed.device import DevicePlacement

        seq_len = len(self._rows[0]["inputs"]) if self._table is None else self._table.seq_len
        placement = DevicePlacement(sharding, self._batch_size, seq_len)
        return placement.place, placement.rows

    @property
    def next_row(self) -> int:
        """The next row not delivered."""
        return self._next_row

    @property
    def step(self) -> int:
        """Steps before the next row, by the batch sizes they had."""
        return self._sizes.step(self._next_row)

    def __len__(self) -> int:
        """Steps from row 0 to the end."""
        ends = self._sizes.step(self._total)
        partial = self._sizes.row(ends) > self._total
        return ends - (partial and self._drop_remainder)

    def __str__(self) -> str:
        return f"Loader({len(self)} batches of {self._batch_size} rows, at row {self._next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this loader is at its end: it passes over its rows once. To start again call "
                "reset(), or seek(step=…) or seek(row=…)"
            )
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        started = time.perf_counter()
        try:
            batch = next(self._started_stream())
        except StopIteration:
            self._ended = True
            error = getattr(self._table, "end", _nothing)()
            raise error or StopIteration from None
        finally:
            self.wait_seconds += time.perf_counter() - started
        self._next_row = min(self._next_row + self._batch_size, self._total)
        return batch

    def start_prefetch(self) -> None:
        """Begin to make batches before the first is asked for."""
        self._started_stream()

    def _started_stream(self) -> Stream:
        if self._stream is None:
            self._stream = self._open_stream()
            # The stream knows nothing of the loader: when that is gone, or Python ends, it closes.
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def _open_stream(self) -> Stream:
        firsts, place, make = self._firsts(), self._place, self._maker.make
        stream: Stream = (
            WorkerStream(self._maker, firsts, self._num_workers, self._prefetch)
            if self._num_workers
            else DirectStream(make, firsts)
        )
        if self._prefetch:
            return AheadStream(stream, self._prefetch, place)
        return _Placed(stream, place)

    def _firsts(self) -> Iterator[int]:
        short = self._batch_size - 1 if self._drop_remainder else 0
        return iter(range(self._next_row, self._total - short, self._batch_size))

    def get_state(self) -> dict[str, Any]:
        """Where the loader is, as plain JSON values: the same on every host."""
        return make_state(self._run, self._next_row, self._sizes.breakpoints)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; raises StateMismatch naming every fact that differs."""
        check_state(state, self._run)
        history = state.get("batch_sizes") or [(0, self._batch_size)]
        self._sizes = BatchSizes(history)
        self._go_to(int(state["next_row"]))

    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        """Go to a step (by the batch sizes that steps had) or to a row; takes no time."""
        if (step is None) == (row is None):
            raise InputError("seek takes step=… or row=…, one of them")
        target = row if step is None else self._sizes.row(step)
        assert target is not None
        if not 0 <= target <= self._total:
            raise InputError(f"cannot seek to row {target}: the rows are 0 to {self._total}")
        self._go_to(target)

    def reset(self) -> None:
        """Go back to the first row."""
        self.seek(row=0)

    def _go_to(self, row: int) -> None:
        self._assert_not_closed()
        self._drop_stream()
        self._next_row, self._ended = row, False
        self._sizes = self._sizes.continued(row, self._batch_size)

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._finalizer()
            self._stream = None

    def close(self) -> None:
        """Stop threads and worker processes; the loader cannot be used afterwards."""
        if not self._closed:
            self._drop_stream()
        super().close()


class _Placed:
    """A stream whose batches pass through ``place``, with nothing made ahead."""

    def __init__(self, stream: Stream, place: Any) -> None:
        self._stream, self._place = stream, place
        self.close = stream.close

    def __next__(self) -> Any:
        return self._place(next(self._stream))


def _as_it_is(batch: Any) -> Any:
    return batch


def _nothing() -> None:
    return None


def _require_whole(**given: tuple[Any, int]) -> None:
    for name, (value, least) in given.items():
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name}={value!r}: expected a whole number of at least {least}")
