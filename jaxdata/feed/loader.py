"""The loader: batches for one process of a training run, from one small state."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grain

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.feed.balance import Balanced
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.iterator import B, BatchIterator
from jaxdata.feed.layouts import Named
from jaxdata.feed.schedule import check_batch_size
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.table import Batch

if TYPE_CHECKING:
    import jax


class Loader(BatchIterator[B], grain.DatasetIterator[B]):
    """An iterator of global batches, of which each process gets its rows.

    It passes over its rows once, unless it is `reiterable`; a `for` after the end raises.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all hosts. Or a ramp
            `[(0, 256), (100_000, 512)]`: batches that begin at row 100,000 or later have 512.
        sharding: a `jax.sharding.Sharding` of (batch, seq): batches are global `jax.Array`s,
            and this process reads only the rows that its devices hold. Or:
        shard: `(i, n)`: numpy batches of the rows `[i B / n, (i + 1) B / n)` of each.
        num_workers: worker processes; 0 makes batches in this process.
        prefetch: batches made ahead by each worker, or by a background thread; 0 for none.
        drop_remainder: drop a last batch that is not full, instead of completing it with padding
            rows. Either way every host has the same number of steps.
        skip_rows: ranges `[(a, b), …]` of rows that are never delivered: a batch is the next
            rows that are not skipped. The state remembers them.
        layout: the trainer whose names and masks a batch has: `"jaxdata"`, `"maxtext"`, `"hf"`,
            `"megatron"`; one of them with options, `{"megatron": {"cu_seqlens": True}}`; one of
            yours, `"module:function"`; or a function of a batch, which may return any structure of
            arrays (see `jaxdata.feed.layouts`). Rows and state do not depend on it.
        extras: `"source"` and/or `"document"` add arrays of that name to every batch, int32
            (batch, seq_len): the number of each slot's source in `source_names`, and of its
            document there (int64 if a source has more than 2^31 documents); -1 in padding. The
            name of a side array of the documents adds the value of each slot's input,
            `"target_<name>"` that of its target; of the stored dtype, 0 where there is none.
        balance: `"attention"` makes the sum of squared segment lengths even over the parts of a
            batch: hosts (`shard=`) or the data shards of a sharding; `{"attention": window}` for a
            sliding window of so many tokens. Which part gets a row changes, not the rows of a step.
        microbatches: consecutive parts that a trainer cuts the rows of each such part into: they
            are made even, too; without `balance` no row goes to another part for it.
        context_parallel: number of devices that share a row. Part *i* of *n* of the sequence axis
            of every array holds chunks *i* and *2n - 1 - i* of *2n*; `positions` are the true ones.
            `jaxdata.feed.context_parallel.in_row_order` undoes it.
        objective: what a model learns but the next token, by name with its settings:
            `{"mtp": 3}` the next tokens, `{"fim": …}`, `{"span": …}`, `{"mask": …}` (see
            `jaxdata.rows.objectives`). A function of each row and its number; the state names it.
        reiterable: at the end, `iter()` begins the next pass, as trainers that count epochs expect;
            in the middle of a pass it gives the rest. Packed rows have another order in each pass,
            that of `rows.repeat()`; a mixture repeats its rows. The state counts `passes`.

    A delivered batch belongs to the caller. `get_state()` is small, plain JSON, the same on
    every host, and restores with any number of hosts, devices and workers, and any batch size.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> [batch["inputs"].shape for batch in jaxdata.Loader(rows, batch_size=2)]
    [(2, 2)]
    """

    @validated
    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        sharding: "jax.sharding.Sharding | None" = None,
        shard: tuple[int, int] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_remainder: bool = False,
        skip_rows: Iterable[tuple[int, int]] = (),
        layout: Named | Callable[[Batch], B] = "jaxdata",
        extras: Sequence[str] = (),
        balance: Balanced | None = None,
        microbatches: int = 1,
        context_parallel: int = 1,
        objective: Any = None,
        reiterable: bool = False,
    ) -> None:
        if sharding is not None and shard is not None:
            raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")

        ramp = check_batch_size(batch_size)  # a config takes 5e9 as well
        settings, board = LoaderSection.among({**locals(), "batch_size": ramp}), None
        if sharding is not None:
            from jaxdata.feed.device import board_of, placement

            board = board_of(sharding)

        def placement_of(size: int, row: int) -> Placement:
            if sharding is None:
                return HostPlacement(size, shard or (0, 1))
            return placement(rows, sharding, settings, size, row)

        super().__init__(rows, settings, placement_of, on_devices=sharding is not None, board=board)
