"""The rank and world size of this process."""

from __future__ import annotations

import os

from torch import distributed

from jaxdata.errors import InputError


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
