"""Two processes that train together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_two(function: Callable[..., Any], *given: Any) -> list[Any]:
    """What `function(rank, 2, port, *given)` returns in either of two new processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ranks = [pool.submit(function, rank, 2, port, *given) for rank in range(2)]
        return [each.result() for each in ranks]


def join_jax(rank: int, ranks: int, port: int) -> None:
    """Make this process one of several, with a device each."""
    import jax

    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
