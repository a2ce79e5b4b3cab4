"""The processes of a run compare their states at the first batch."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed import same_rows
from jaxdata.feed.same_rows import Board, compare_states
from jaxdata.testing import distinct_documents

SCOPES = map("scope {}".format, count())


class Notes:
    """A board that threads share, as processes do theirs; what a process knows is of its scope."""

    def __init__(self, shared: dict[str, Any], number: int, processes: int) -> None:
        self._shared, self.process, self.processes = shared, f"process {number}", processes
        self.leads = number == 0
        self.scope, self._lock = next(SCOPES), shared.setdefault("lock", Lock())

    def add(self, key: str, number: int) -> int:
        with self._lock:
            self._shared[key] = self._shared.get(key, 0) + number
            return int(self._shared[key])

    def put(self, key: str, note: str) -> None:
        self._shared[key] = note

    def get(self, key: str) -> str:
        return str(self._shared.get(key, ""))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_rows, "_GRACE", 0.0)
    monkeypatch.setattr(same_rows, "_POLL", 0.001)


def state(seed: int = 0, **more: Any) -> dict[str, Any]:
    docs = jaxdata.ArrayDocuments(distinct_documents([9] * 8), name="train/web")
    loader = jaxdata.Loader(jaxdata.pack(docs, seq_len=8, seed=seed), batch_size=2, prefetch=0)
    return {**loader.get_state(), **more}


def met(boards: Sequence[Board], states: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each process is told; nothing where it goes on."""

    def meet(board: Board, state: Mapping[str, Any]) -> str:
        try:
            compare_states(board, state)
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(boards)) as threads:
        return [*threads.map(meet, boards, states)]


def boards(processes: int) -> list[Board]:
    shared: dict[str, Any] = {}
    return [Notes(shared, number, processes) for number in range(processes)]


def test_equal_states_go_on_however_often() -> None:
    several = boards(3)
    assert met(several, [state()] * 3) == [""] * 3
    assert met(several, [state(next_row=4)] * 3) == [""] * 3
    assert met(several[:1], [state()]) == [""], "it is known, and nobody is waited for"


@pytest.mark.parametrize("odd", [0, 2])
def test_every_process_is_told_what_differs(odd: int) -> None:
    given = [state(7 if number == odd else 0) for number in range(3)]
    for number, said in enumerate(met(boards(3), given)):
        assert "would train on different rows, compared at the first batch:" in said
        assert "give all of them the same dataset, config and state" in said
        own = 7 if number == odd else 0
        assert f"seed in process {number} (here): {own}, in process " in said
        assert f": {7 - own}\n" in said
        assert "next_row" not in said


def test_it_waits_for_others_a_time_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone, other = boards(2)
    slept = list[float]()
    now = map(float, count(1000, 10))
    time = SimpleNamespace(monotonic=lambda: next(now), sleep=slept.append)
    monkeypatch.setattr(same_rows, "time", time)
    compare_states(alone, state(3))
    assert slept[0] < slept[1] < slept[-1] == 1, "it looks less and less often"
    assert caplog.messages == [
        "process 0: after 120 s 1 of 2 processes asked for a batch, so that not all rows are "
        "compared"
    ]
    assert other.get("last") == "", "what it looked at alone is forgotten"
    with pytest.raises(InputError, match="process 0: after 120 s 1 of 2 processes called reweigh:"):
        compare_states(alone, state(3), "where they were reweighed")
