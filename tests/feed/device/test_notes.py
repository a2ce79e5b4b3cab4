"""What processes of JAX see of each other, with a service in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax._src import distributed

from jaxdata.feed.device import JaxNotes, board_of


class Service:
    """JAX's coordination service, as far as it is used."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fails = ""

    def key_value_increment(self, key: str, number: int) -> int:
        self.values[key] = self.values.get(key, 0) + number
        return self.values[key]

    def key_value_set(self, key: str, note: str, allow_overwrite: bool = False) -> None:
        assert allow_overwrite or key not in self.values
        self.values[key] = note

    def key_value_try_get(self, key: str) -> str:
        if self.fails or key not in self.values:
            raise jax.errors.JaxRuntimeError(self.fails or f"NOT_FOUND: {key}")
        return self.values[key]


def sharding(*processes: int) -> Any:
    return SimpleNamespace(device_set=[SimpleNamespace(process_index=each) for each in processes])


def test_processes_that_share_a_sharding_have_a_board(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr(distributed.global_state, "client", service)
    assert board_of(sharding(3, 3)) is None, "one process is alone"
    board, other = board_of(sharding(3, 0, 3)), board_of(sharding(0, 1))
    assert isinstance(board, JaxNotes)
    assert other is not None
    assert (board.scope, board.process, board.processes) == ("jaxdata/0,3", "process 0", 2)
    assert [board.add("n", 2), board.add("n", 0), other.add("n", 1)] == [2, 2, 1]
    assert board.get("note") == ""
    board.put("note", "one")
    board.put("note", "two")
    assert (board.get("note"), other.get("note")) == ("two", "")
    assert service.values == {"jaxdata/0,3/n": 2, "jaxdata/0,1/n": 1, "jaxdata/0,3/note": "two"}
    service.fails = "UNAVAILABLE"
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        board.get("note")
    for without in (None, object()):
        monkeypatch.setattr(distributed.global_state, "client", without)
        assert board_of(sharding(0, 1)) is None
