"""The rank and world size of this process, and what the ranks see of each other."""

from __future__ import annotations

import os
from typing import Any

from torch import distributed

from jaxdata.errors import InputError
from jaxdata.feed.same_rows import Board


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
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class RankNotes:
    """See `Board`; the store in which `torch.distributed` met. Ranks of one number are one."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self.scope = store, f"jaxdata/{world_size}"
        self.process, self.processes = f"rank {rank}", world_size

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(f"{self.scope}/{key}", number))

    def put(self, key: str, note: str) -> None:
        self._store.set(f"{self.scope}/{key}", note)

    def get(self, key: str) -> str:
        name = f"{self.scope}/{key}"
        return self._store.get(name).decode() if self._store.check([name]) else ""


def board_of(rank: int, world_size: int) -> Board | None:
    """The board of the ranks that share batches; None for one, or without `torch.distributed`."""
    if world_size == 1 or not (distributed.is_available() and distributed.is_initialized()):
        return None
    store = distributed.distributed_c10d._get_default_store()
    return RankNotes(store, rank, world_size)
