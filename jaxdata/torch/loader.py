"""The loader for torch: tensors, one part for each rank, by itself or in a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Self

import cloudpickle
import torch
from torch.utils.data import IterableDataset, get_worker_info

from jaxdata.config import Config, build_rows, load_config, loader_arguments
from jaxdata.errors import InputError, StateMismatch
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.loader import Loader as BaseLoader
from jaxdata.feed.schedule import Span
from jaxdata.rows.table import Batch
from jaxdata.torch.ranks import shard_of
from jaxdata.torch.tensors import Delivery, Tensors
from jaxdata.torch.turns import Turn, whole_state

__all__ = ["Loader", "load"]

_ABSENT: dict[str, Any] = {"skips": [], "amendments": []}
"""what a state without them means"""


class Loader(BaseLoader, IterableDataset[Tensors]):
    """A one-pass iterator of this rank's part of global batches, as dicts of tensors.

    By itself it makes batches ahead in a thread, or in worker processes of its own. In a torch
    `DataLoader` or torchdata's `StatefulDataLoader`, with `batch_size=None` and any `num_workers`,
    it shares its steps out among their workers; the order stays the same.

    Args:
        rows: what `jaxdata.pack` or `mix` returns, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all ranks; or a ramp.
        rank: which part of each batch this process gets, of
        world_size: how many; where not given those of `torch.distributed`, else of torchrun. With
            tensor or pipeline parallelism give those of the data-parallel group.
        device: where the tensors are to be; copies to a GPU run ahead, from pinned memory.
        long: int64 instead of int32, which torch's cross entropy takes as targets. The layouts
            `"hf"` and `"megatron"` have int64 anyway.
        settings: as of `jaxdata.Loader`: `num_workers`, `prefetch`, `drop_remainder`, `layout` …

    State and rows are those of `jaxdata.Loader`: each goes on where the other stopped, with any
    number of ranks and workers. Where others make the batches, this object stays where it was:
    ask the `StatefulDataLoader` for its state, and with a plain `DataLoader` use `Batches`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.torch.Loader(rows, batch_size=2)
    >>> [batch["inputs"].shape for batch in loader], loader.state_dict()["next_row"]
    ([torch.Size([2, 2])], 2)
    """

    _closed = True  # as long as nothing is there to close: a refusal of `__init__` is no loader

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
        shard = shard_of(rank, world_size)
        self._delivery = Delivery(device, long)
        self._turn: Turn | None = None
        given = {"batch_size": batch_size, "device": device, "long": long, **settings}
        self._arguments = {**given, "rank": shard[0], "world_size": shard[1]}
        super().__init__(rows, batch_size=batch_size, shard=shard, **settings)

    def _placement(  # the same for rows of any shape
        self,
        size: int,
        row: int,  # noqa: ARG002
        sharding: Any,  # noqa: ARG002
        shard: tuple[int, int],
    ) -> Placement:
        return TensorPlacement(size, shard, self._delivery)

    def _spans(self) -> Iterator[Span]:
        spans = super()._spans()
        turn = self._turn
        return spans if turn is None else islice(spans, turn.ahead, None, turn.workers)

    def __iter__(self) -> Self:
        info = get_worker_info()
        if info is not None and self._turn is None:
            self._become_worker(Turn.of(info))
        return super().__iter__()

    def _become_worker(self, turn: Turn) -> None:
        """Leave what belongs to the process that this copy came from, and make batches directly."""
        if self._delivery.device is not None:
            raise InputError(
                f"device={str(self._delivery.device)!r} in a worker of a DataLoader: leave it out "
                "there and copy in the trainer (DataLoader(pin_memory=True)), or use this loader "
                "by itself, with num_workers of its own"
            )
        if self._stream is not None:
            self._finalizer.detach()
            self._stream = None
        self._turn, self._num_workers, self._prefetch = turn, 0, 0

    def __next__(self) -> Tensors:
        batch = self._delivery.receive(super().__next__())
        if self._turn is not None:
            self._turn.taken()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The state: that of `get_state`, in a worker with its turn.

        What may be absent there is here in any case: `torch.distributed.checkpoint` restores only
        names that a new loader has too.
        """
        state = {**_ABSENT, **self.get_state()}
        if self._turn is not None:
            state["turn"] = {**asdict(self._turn), "batch_sizes": self.batch_sizes}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: a loader's, of JAX or torch, or a `StatefulDataLoader`'s.

        Before a `DataLoader` is made of this one, it may be of any number of workers or ranks.
        Given to `StatefulDataLoader.load_state_dict` it has to be of as many workers.
        """
        if self._turn is None:
            plain, steps = whole_state(state)
            self.set_state(plain)
            if steps:
                self.seek(step=self.step + steps)
            return
        self.set_state(state)
        self._turn.ahead = state["turn"]["ahead"]
        sizes = [tuple(size) for size in state["turn"]["batch_sizes"]]
        same = all(state.get(name, []) == value for name, value in self.get_state().items())
        if sizes != self.batch_sizes or not same:
            raise StateMismatch(
                f"batch_size was {sizes} when this StatefulDataLoader was saved and is "
                f"{self.batch_sizes}, or rows are skipped that were not: its workers cannot go on "
                "each by itself. Give the state to load_state_dict of the jaxdata.torch.Loader "
                "instead, and make the StatefulDataLoader afterwards"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """For spawned workers; functions of the user's go along."""
        return _restore, (cloudpickle.dumps((self._rows, self._arguments)), self.get_state())


class TensorPlacement(HostPlacement):
    """A rank's part of a batch, as tensors."""

    def __init__(self, batch_size: int, shard: tuple[int, int], delivery: Delivery) -> None:
        super().__init__(batch_size, shard)
        self._delivery = delivery
        self.works = delivery.works

    def place(self, batch: Batch) -> Tensors:
        """See `Placement`."""
        return self._delivery.send(batch)


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
        split: the curriculum's split where not given; of any other split, every source comes once.
        rank: see `Loader`, as the next three.
        world_size: of how many ranks.
        device: where the tensors are to be.
        long: int64 instead of int32.
        overrides: fields of the config, nested or by dotted names.
    """
    settings = load_config(config, overrides)
    rows, arguments = build_rows(settings, split), loader_arguments(settings, split)
    return Loader(rows, rank=rank, world_size=world_size, device=device, long=long, **arguments)
