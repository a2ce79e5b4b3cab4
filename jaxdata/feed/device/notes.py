"""What processes that share a sharding see of each other, by JAX's coordination service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxdata.feed.same_rows import Board


class JaxNotes:
    """See `Board`."""

    def __init__(self, client: Any, processes: Sequence[int]) -> None:
        self._client = client
        self.scope = f"jaxdata/{','.join(map(str, processes))}"
        self.process, self.processes = f"process {jax.process_index()}", len(processes)

    def add(self, key: str, number: int) -> int:
        return int(self._client.key_value_increment(f"{self.scope}/{key}", number))

    def put(self, key: str, note: str) -> None:
        self._client.key_value_set(f"{self.scope}/{key}", note, allow_overwrite=True)

    def get(self, key: str) -> str:
        try:
            return str(self._client.key_value_try_get(f"{self.scope}/{key}"))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return ""


def board_of(sharding: jax.sharding.Sharding) -> Board | None:
    """The board of the processes that a sharding spans; None for one, or without such a service."""
    devices: Any = sharding.device_set
    processes = sorted({device.process_index for device in devices})
    client = _client() if len(processes) > 1 else None
    return None if client is None else JaxNotes(client, processes)


def _client() -> Any:
    try:  # no public name; Orbax uses this one as well
        from jax._src.distributed import global_state
    except ImportError:
        return None
    client = global_state.client
    return client if hasattr(client, "key_value_increment") else None
