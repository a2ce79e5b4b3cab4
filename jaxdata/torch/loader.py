"""The loader for torch: each rank's rows as tensors, by itself or in a `DataLoader`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import cloudpickle
import numpy as np
import torch
from torch import distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.base.numbers import is_whole, validated
from jaxdata.config import Config, build_rows, load_config, loader_arguments
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.layouts import is_array, leaves, map_leaves
from jaxdata.feed.loader import BatchIterator
from jaxdata.feed.schedule import check_batch_size
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.state import parse_state, sealed
from jaxdata.feed.steering import Board
from jaxdata.rows.table import Batch

Tensors = dict[str, Any]
"""tensors by name; a single number is a Python number, as kernels take it"""


class TensorPlacement(HostPlacement):
    """A rank's rows of a batch as tensors, on the device of the trainer.

    On the host a tensor shares the numpy array's memory, which is reused only when neither array
    nor tensor refers to it. To a CUDA device batches go from pinned memory in a stream of their
    own, while the device computes.

    Args:
        batch_size: rows of the global batch.
        shard: the rank, and the number of ranks.
        device: the device; None for the host.
        long: int32 becomes int64, on the device.
    """

    def __init__(
        self, batch_size: int, shard: tuple[int, int], device: torch.device | None, long: bool
    ) -> None:
        super().__init__(batch_size, shard)
        self._device, self._long, self._stream = device, long, None
        self.works = long or device is not None
        if device is not None and device.type == "cuda":
            if not torch.cuda.is_available():
                raise InputError(
                    f"device={str(device)!r}: torch finds no CUDA device here; give another, or "
                    "none for tensors on the host"
                )
            self._stream = torch.cuda.Stream(device)
            self._device = self._stream.device  # with its number

    def place(self, batch: Any) -> Any:
        """Start to move a batch of any structure; may be called by a thread that works ahead."""
        if self._stream is None:
            return map_leaves(self._moved, batch)
        with torch.cuda.stream(self._stream):  # the current device of a thread may be another
            moved = map_leaves(self._moved, batch)
            return _Sent(moved, self._device, self._stream.record_event())

    def _moved(self, _: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if not is_array(leaf):
                return leaf
            if not np.ndim(leaf):
                return np.asarray(leaf).item()
            leaf = torch.from_numpy(np.asarray(leaf))
        if self._device is not None:
            # Only from pinned memory: other devices may read the memory of the host later, when it
            # has the next batch.
            pinned = self._stream is not None
            leaf = (leaf.pin_memory() if pinned else leaf).to(self._device, non_blocking=pinned)
        return leaf.long() if self._long and leaf.dtype == torch.int32 else leaf


class _Sent(NamedTuple):
    batch: Any
    device: torch.device | None
    arrival: torch.cuda.Event


def _received(batch: Any) -> Any:
    """The batch for the caller's stream, which waits on the device until it has arrived."""
    if not isinstance(batch, _Sent):
        return batch
    stream = torch.cuda.current_stream(batch.device)
    stream.wait_event(batch.arrival)
    for value in leaves(batch.batch).values():
        if isinstance(value, torch.Tensor):
            value.record_stream(stream)  # else the next copy could overwrite it
    return batch.batch


def is_grouped() -> bool:
    """Whether this process is one of a group of `torch.distributed`."""
    return bool(distributed.is_available() and distributed.is_initialized())


def shard_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else of `torch.distributed`, else as torchrun sets them.

    Raises:
        InputError: only one of them is given.
    """
    if (rank is None) != (world_size is None):
        raise InputError(
            f"rank={rank}, world_size={world_size}: give both (those of the data-parallel group), "
            "or neither for those of torch.distributed"
        )
    if rank is not None and world_size is not None:
        return rank, world_size
    if is_grouped():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class RankNotes(Board):
    """The store in which `torch.distributed` met. Ranks of one number are one."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self.scope = store, f"jaxdata/{world_size}"
        self.process, self.processes, self.leads = f"rank {rank}", world_size, rank == 0

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(f"{self.scope}/{key}", number))

    def put(self, key: str, note: str) -> None:
        self._store.set(f"{self.scope}/{key}", note)

    def get(self, key: str) -> str:
        name = f"{self.scope}/{key}"
        return self._store.get(name).decode() if self._store.check([name]) else ""


def board_of(rank: int, world_size: int) -> Board | None:
    """The board of the ranks that share batches; None for one, or without `torch.distributed`."""
    if world_size == 1 or not is_grouped():
        return None
    store = distributed.distributed_c10d._get_default_store()
    return RankNotes(store, rank, world_size)


def whole_state(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """A loader's state, and the steps after it, from that state or a `StatefulDataLoader`'s."""
    steps: Any = 0
    try:
        if "_snapshot" in state:
            snapshot, steps = state["_snapshot"], state["_steps_since_snapshot"]
            state = snapshot["_worker_snapshots"][f"worker_{snapshot['_last_yielded_worker_id']}"]
            if not is_whole(steps) or steps < 0:
                raise ValueError("_steps_since_snapshot")
        if "fetcher_state" in state:
            state = state["fetcher_state"]["dataset_iter_state"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateMismatch(
            "this state of a StatefulDataLoader has none of a jaxdata.torch.Loader in it "
            f"({error} is missing or wrong): it had another dataset, or torchdata has a new format"
        ) from None
    return state, steps


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
    A `reweigh` does not reach these workers: use this object by itself, with `num_workers`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.torch.Loader(rows, batch_size=2)
    >>> [batch["inputs"].shape for batch in loader], loader.state_dict()["next_row"]
    ([torch.Size([2, 2])], 2)
    """

    _worker = _torch_workers = 0
    """number of the worker of a `DataLoader` that this copy is in, and of its workers"""

    @validated
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
        where = self._device = None if device is None else torch.device(device)
        super().__init__(
            rows,
            LoaderSection.checked(batch_size=check_batch_size(batch_size), **settings),
            lambda size, _: TensorPlacement(size, shard, where, long),
            board=board_of(*shard),
        )
        self._arguments = {"batch_size": batch_size, "device": device, "long": long, **settings}
        self._arguments |= {"rank": shard[0], "world_size": shard[1]}

    def __iter__(self) -> Self:
        info = get_worker_info()
        if info is not None and not self._torch_workers:
            self._become_worker(info.id, info.num_workers)
        return super().__iter__()

    def _become_worker(self, worker: int, workers: int) -> None:
        """Leave threads and processes to the original of this copy, and make batches directly."""
        if self.reiterable:
            raise InputError(
                "reiterable=True in a worker of a DataLoader: the loader that the workers were "
                "copied from would stay in its first pass. Use this loader by itself, with "
                "num_workers of its own"
            )
        if self._device is not None:
            raise InputError(
                f"device={str(self._device)!r} in a worker of a DataLoader: leave it out "
                "and copy in the trainer (DataLoader(pin_memory=True)), or use this loader by "
                "itself, with num_workers of its own"
            )
        self._worker, self._torch_workers = worker, workers
        self._become_copy(worker, workers)

    def __next__(self) -> Tensors:
        batch: Tensors = _received(super().__next__())
        self._ahead = self._every - 1
        return batch

    def deliver(self, batch: Batch) -> Tensors:
        """A batch of your own arrays as tensors; see `jaxdata.Loader.deliver`."""
        found: Tensors = _received(super().deliver(batch))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of `get_state`, in a DataLoader's worker with its turn.

        Fields that may be absent there are always present here: `torch.distributed.checkpoint`
        restores only names that a new loader has too.
        """
        state = {"skips": [], "amendments": [], **self.get_state()}
        if not self._torch_workers:
            return state
        turn = {"worker": self._worker, "workers": self._torch_workers, "ahead": self._ahead}
        sizes = [list(point) for point in self.batch_sizes]
        return sealed({**state, "turn": {**turn, "batch_sizes": sizes}})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: a loader's, of JAX or torch, or a `StatefulDataLoader`'s.

        Called before a `DataLoader` is made of this loader, it takes a state of any number of
        workers and ranks. `StatefulDataLoader.load_state_dict` needs the same number of workers.
        """
        if not self._torch_workers:
            plain, steps = whole_state(state)
            self.set_state(plain)
            if steps:
                self.seek(step=self.step + steps)
            return
        saved, workers = parse_state(state), self._torch_workers
        self.set_state(state)
        turn, same = saved.turn, saved.model_copy(update={"turn": None})
        fits = turn and turn.ahead < workers and turn.batch_sizes == self.batch_sizes
        if turn is None or not fits or parse_state(self.get_state()) != same:
            raise StateMismatch(
                "the workers of this StatefulDataLoader cannot resume independently: its state is "
                f"of another batch_size than {self.batch_sizes}, of other skipped rows or fewer "
                "workers. Give the state to load_state_dict of the jaxdata.torch.Loader instead, "
                "and make the StatefulDataLoader afterwards"
            )
        self._ahead = turn.ahead

    def __reduce__(self) -> tuple[Any, ...]:
        """For spawned workers; cloudpickle takes functions of the user along."""
        return _restore, (cloudpickle.dumps((self._given, self._arguments)), self.get_state())


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

    >>> import jaxdata.testing, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = jaxdata.testing.write_dataset(folder, {"train/web": [[1, 2, 0], [3, 4, 0]]})
    ...     config = {"dataset": folder, "pack": {"seq_len": 2}, "loader": {"batch_size": 1}}
    ...     next(load(config))["inputs"].shape
    torch.Size([1, 2])
    """
    settings = load_config(config, overrides)
    rows, arguments = build_rows(settings, split), loader_arguments(settings, split)
    return Loader(rows, rank=rank, world_size=world_size, device=device, long=long, **arguments)


class Batches(Dataset[Tensors]):
    """Batch *k* from `start_row` on, for `DataLoader(batch_size=None, num_workers=n)`.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all ranks; or a ramp.
        rank: number of this process among those that share a batch; see `jaxdata.torch.Loader`.
        world_size: number of those processes.
        start_row: first row of batch 0: `next_row` of a state. Or call `set_state`.
        long: int64 instead of int32.
        settings: `drop_remainder`, `skip_rows` and `layout`, as for `jaxdata.Loader`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> batches = jaxdata.torch.Batches(rows, batch_size=1)
    >>> len(batches), batches[1]["inputs"].shape
    (2, torch.Size([1, 2]))
    """

    @validated
    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        rank: int | None = None,
        world_size: int | None = None,
        start_row: int = 0,
        long: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        settings |= {"num_workers": 0, "prefetch": 0, "long": long}
        settings |= {"rank": rank, "world_size": world_size}
        self._loader = Loader(rows, batch_size=batch_size, **settings)
        self._loader.seek(row=start_row)
        self._first = self._loader.step

    def __repr__(self) -> str:
        return f"Batches({len(self):,} of {self._loader!r})"

    def __len__(self) -> int:
        return len(self._loader) - self._first

    def __getitem__(self, number: int) -> Tensors:
        with self._at(range(len(self))[number]) as loader:
            return next(loader)

    @contextmanager
    def _at(self, number: int) -> Iterator[Loader]:
        with self._loader.lock:  # of several threads each gets what it asks for
            if self._loader.step != self._first + number:
                self._loader.seek(step=self._first + number)
            yield self._loader

    @validated
    def get_state(self, batches: int) -> dict[str, Any]:
        """The state after training on the first `batches` of these.

        A loader, of JAX or torch, has the same state there and can resume from it.
        """
        with self._at(batches) as loader:
            return loader.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Start where a state was taken: a loader's, or that of a `StatefulDataLoader` of one."""
        self._loader.load_state_dict(state)
        self._first = self._loader.step
