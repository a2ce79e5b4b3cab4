"""The loader for torch: each rank's rows as tensors, by itself or in a `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Self

import cloudpickle
import torch
from torch.utils.data import IterableDataset, get_worker_info

from jaxdata.config import Config, build_rows, load_config, loader_arguments
from jaxdata.errors import InputError, StateMismatch
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.pipeline import BatchPipeline
from jaxdata.feed.saved_state import SavedState, parse_state, sealed
from jaxdata.rows.table import Batch
from jaxdata.scalars import takes_numpy
from jaxdata.torch.ranks import board_of, shard_of
from jaxdata.torch.tensors import Delivery, Tensors
from jaxdata.torch.worker_steps import Turn, whole_state

_ABSENT: dict[str, Any] = {"skips": [], "amendments": []}
"""the values of fields that a state may lack"""


class Loader(BatchIterator, IterableDataset[Tensors]):
    """An iterator of this rank's rows of global batches, as dicts of tensors.

    By itself it makes batches ahead in a thread, or in worker processes of its own. In a torch
    `DataLoader` or torchdata's `StatefulDataLoader`, with `batch_size=None` and any `num_workers`,
    it divides its steps among their workers; the order stays the same.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all ranks; or a ramp.
        rank: number of this process among those that share a batch.
        world_size: number of those processes. The default for both is `torch.distributed`, else
            torchrun. With tensor or pipeline parallelism pass those of the data-parallel group.
        device: device of the tensors; copies to CUDA run ahead, from pinned memory.
        long: int64 instead of int32, which torch's cross entropy takes as targets. The layouts
            `"hf"` and `"megatron"` have int64 anyway.
        settings: as for `jaxdata.Loader`: `num_workers`, `prefetch`, `drop_remainder`, `layout`,
            `reiterable` …

    State and rows are those of `jaxdata.Loader`: each resumes where the other stopped, with any
    number of ranks and workers. If a DataLoader's workers make the batches, this object does not
    move: take the state of the `StatefulDataLoader`, and with a plain `DataLoader` use `Batches`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.torch.Loader(rows, batch_size=2)
    >>> [batch["inputs"].shape for batch in loader], loader.state_dict()["next_row"]
    ([torch.Size([2, 2])], 2)
    """

    @takes_numpy
    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        long: bool = False,
        **settings: Any,
    ) -> None:
        for name in {"sharding", "shard"} & set(settings):
            raise InputError(f"{name}= is for arrays: give rank= and world_size= for tensors")
        super().__init__()
        shard = shard_of(rank, world_size)
        self._delivery = delivery = Delivery(device, long)
        self._turn: Turn | None = None
        given = {"batch_size": batch_size, "device": device, "long": long, **settings}
        self._arguments = {**given, "rank": shard[0], "world_size": shard[1]}
        self._pipeline = BatchPipeline(
            rows,
            lambda size, _: TensorPlacement(size, shard, delivery),
            batch_size=batch_size,
            board=board_of(*shard),
            **settings,
        )

    def __iter__(self) -> Self:
        info = get_worker_info()
        if info is not None and self._turn is None:
            self._become_worker(Turn.of(info))
        return super().__iter__()

    def _become_worker(self, turn: Turn) -> None:
        """Leave threads and processes to the original of this copy, and make batches directly."""
        if self._pipeline.reiterable:
            raise InputError(
                "reiterable=True in a worker of a DataLoader: the loader that the workers were "
                "copied from would stay in its first pass. Use this loader by itself, with "
                "num_workers of its own"
            )
        if self._delivery.device is not None:
            raise InputError(
                f"device={str(self._delivery.device)!r} in a worker of a DataLoader: leave it out "
                "and copy in the trainer (DataLoader(pin_memory=True)), or use this loader by "
                "itself, with num_workers of its own"
            )
        self._turn = turn
        self._pipeline.become_copy(lambda spans: islice(spans, turn.ahead, None, turn.workers))

    def __next__(self) -> Tensors:
        batch: Tensors = self._delivery.receive(super().__next__())
        if self._turn is not None:
            self._turn.taken()
        return batch

    def deliver(self, batch: Batch) -> Tensors:
        """A batch of your own arrays as tensors; see `jaxdata.Loader.deliver`."""
        found: Tensors = self._delivery.receive(super().deliver(batch))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of `get_state`, in a DataLoader's worker with its turn.

        Fields that may be absent there are always present here: `torch.distributed.checkpoint`
        restores only names that a new loader has too.
        """
        state = {**_ABSENT, **self.get_state()}
        if self._turn is None:
            return state
        sizes = [list(point) for point in self.batch_sizes]
        return sealed({**state, "turn": {**asdict(self._turn), "batch_sizes": sizes}})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: a loader's, of JAX or torch, or a `StatefulDataLoader`'s.

        Called before a `DataLoader` is made of this loader, it takes a state of any number of
        workers and ranks. `StatefulDataLoader.load_state_dict` needs the same number of workers.
        """
        if self._turn is None:
            plain, steps = whole_state(state)
            self.set_state(plain)
            if steps:
                self.seek(step=self.step + steps)
            return
        saved = parse_state(state)
        ahead, sizes = self._turn.parse(saved)
        self.set_state(state)
        self._turn.ahead = ahead
        if sizes != self.batch_sizes or not self._goes_on(saved):
            raise StateMismatch(
                f"batch_size was {sizes} when this StatefulDataLoader was saved and is "
                f"{self.batch_sizes}, or other rows are skipped: its workers cannot resume "
                "independently. Give the state to load_state_dict of the jaxdata.torch.Loader "
                "instead, and make the StatefulDataLoader afterwards"
            )

    def _goes_on(self, saved: SavedState) -> bool:
        """Whether this loader is exactly where a state was, with the same skips and sizes."""
        now = parse_state(self.get_state())
        return now == saved._replace(turn=None)

    def __reduce__(self) -> tuple[Any, ...]:
        """For spawned workers; cloudpickle takes functions of the user along."""
        return _restore, (cloudpickle.dumps((self.rows, self._arguments)), self.get_state())


class TensorPlacement(HostPlacement):
    """A rank's rows of a batch, as tensors."""

    def __init__(self, batch_size: int, shard: tuple[int, int], delivery: Delivery) -> None:
        super().__init__(batch_size, shard)
        self._delivery = delivery
        self.works = delivery.works

    def place(self, batch: Batch) -> Tensors:
        sent: Tensors = self._delivery.send(batch)
        return sent


def _restore(pickled: bytes, state: Mapping[str, Any]) -> Loader:
    rows, arguments = cloudpickle.loads(pickled)
    loader = Loader(rows, **arguments)
    loader.set_state(state)
    return loader


def load(
    config: str | Path | Mapping[str, Any] | Config,
    split: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    device: str | torch.device | None = None,
    long: bool = False,
    **overrides: Any,
) -> Loader:
    """Open the loader that a config describes, as `jaxdata.load` does, for torch.

    Args:
        config: a YAML file, the name of a config that comes with jaxdata, a mapping or a `Config`.
        split: by default the curriculum's; of any other split, every source comes once.
        rank: see `Loader`.
        world_size: number of ranks.
        device: device of the tensors.
        long: int64 instead of int32.
        overrides: fields of the config, nested or by dotted names.
    """
    settings = load_config(config, overrides)
    rows, arguments = build_rows(settings, split), loader_arguments(settings, split)
    return Loader(rows, rank=rank, world_size=world_size, device=device, long=long, **arguments)
