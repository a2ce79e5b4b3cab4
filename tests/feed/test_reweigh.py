"""A running loader mixed by other weights, and processes that compare which rows they have."""

import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.feed import steering
from jaxdata.feed.state import sealed
from jaxdata.feed.steering import Board, compare_states
from jaxdata.look.preview import state_check
from jaxdata.testing import assert_same_batches
from tests.builders import dataset, documents
from tests.feed.pod import SOURCES, mixed as pod_mixture, put_together, run_pod

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
    monkeypatch.setattr(steering, "_GRACE", 0.0)
    monkeypatch.setattr(steering, "_POLL", 0.001)


NAMES = ("web", "code", "books")
WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}


ROWS = {}
for number, (name, many) in enumerate(zip(NAMES, (90, 60, 40), strict=True)):
    found = documents(many, longest=40, seed=number, first=1 + 10_000 * number)
    pools = {"chunk_bytes": 40, "block_bytes": 400, "lanes": 4}
    ROWS[name] = jaxdata.pack(jaxdata.ArrayDocuments(found, name=name), seq_len=32, **pools)


PHASES = [jaxdata.Phase(rows=70, weights=WEIGHTS), jaxdata.Phase(weights={"web": 1, "code": 2})]
MIXED = jaxdata.mix(ROWS, phases=PHASES, epochs={"web": 2}, on_exhaustion="renormalize")
STRICT = jaxdata.mix(ROWS, phases=[jaxdata.Phase(rows=60, weights=WEIGHTS)])


def loaders(hosts: int, size: int = 6, rows: Any = MIXED, **given: Any) -> list[jaxdata.Loader]:
    shards = [(host, hosts) for host in range(hosts)]
    return [jaxdata.Loader(rows, batch_size=size, shard=each, **given) for each in shards]


def replayed(amendments: Any, rows: Any = MIXED) -> Any:
    """The mixture by hand: what the log says, and nothing else."""
    for each in amendments:
        rows = rows.amend(each["row"], weights=each["weights"])
    return rows


def rest(loader: jaxdata.Loader) -> list[Any]:
    """All that follows, whether its sources last or not."""
    found = []
    with suppress(SourceExhausted):
        found.extend(loader)
    return found


STEPS = st.lists(st.none() | st.lists(st.integers(0, 9), min_size=3, max_size=3), max_size=9)
LEG = st.tuples(st.sampled_from([1, 3, 2]), st.sampled_from([0, 1, 3]), STEPS)


TEN = [([1, 3, 2][k % 3], [0, 1, 3][k % 3], [[k, 9 - k, 1 + k % 3], None]) for k in range(10)]


@settings(max_examples=5)
@given(st.lists(LEG, min_size=1, max_size=4), st.integers(0, 3))
@example(TEN, 1)
@example([(1, 1, [[1, 9, 0], [1, 9, 0], [5, 0, 5]]), (3, 0, [[0, 0, 4]]), (2, 3, [None])], 1)
def test_a_run_reweighed_and_killed_on_any_hosts_has_the_rows_it_logs(legs: Any, lost: int) -> None:
    """Each leg goes on from a state that was saved some steps before the last one ended."""
    states: list[str] = [json.dumps(loaders(1)[0].get_state())]
    for hosts, prefetch, steps in legs:
        group = loaders(hosts, prefetch=prefetch, balance="attention")
        for one in group:
            one.set_state(json.loads(states[max(len(states) - 1 - lost, 0)]))
        begun, delivered = group[0].step, []
        for numbers in steps[: len(group[0]) - begun]:
            delivered.append([next(one) for one in group])
            if numbers is not None and any(numbers):
                weights = dict(zip(NAMES, numbers, strict=True))
                ahead = group[0].next_row + 6 * prefetch
                assert {one.reweigh(weights) for one in group} == {min(ahead, len(group[0].rows))}
            (state,) = {json.dumps(one.get_state()) for one in group}
            states.append(state)
        delivered += zip(*[rest(one) for one in group], strict=True)
        amended = replayed(group[0].get_state().get("amendments", ()))
        by_hand = loaders(hosts, rows=amended, prefetch=0, balance="attention")
        for one in by_hand:
            one.seek(step=begun)
        wanted = [*zip(*[rest(one) for one in by_hand], strict=True)]
        assert len(wanted) == len(delivered)
        for found, expected in zip(delivered, wanted, strict=True):
            assert_same_batches(found, expected)


@pytest.mark.slow
def test_worker_processes_start_anew_with_other_weights() -> None:
    """Ends that come earlier, and later again, included."""
    draws = random.Random(3)
    loader = jaxdata.Loader(MIXED, batch_size=4, num_workers=2, prefetch=0)
    found, ends = [], set()
    for step, batch in enumerate(loader):
        found.append(batch)
        if step % 3 == 1:
            loader.reweigh({name: draws.choice([0, 1, 7]) for name in NAMES} | {"books": 0.1})
            ends.add(len(loader.rows))
    state = loader.get_state()
    loader.close()
    assert len(ends) > 3
    assert len(state["amendments"]) > 5
    by_hand = replayed(state["amendments"])
    assert_same_batches(found, jaxdata.Loader(by_hand, batch_size=4, prefetch=0))


def test_it_is_an_amendment_like_any_other() -> None:
    """In the state, the report and preview; joined with a hand-written one at the same row."""
    by_hand = MIXED.amend(24, epochs={"code": 3}).amend(48, weights={"books": 1})
    [loader] = loaders(1, rows=by_hand, prefetch=1)
    for _ in range(3):
        next(loader)
    assert loader.reweigh({"code": np.float32(0.25), "web": np.int64(1)}) == 24
    state = json.loads(json.dumps(loader.get_state()))
    asked = {"weights": {"code": 0.25, "web": 1}, "asked_at": 18}
    joined = {"row": 24, "epochs": {"web": 2, "code": 3}, **asked}
    assert state["amendments"] == [joined, {"row": 48, "weights": {"books": 1}}]
    assert loader.rows.intervals[1].shares == {"web": 0.8, "code": 0.2}
    assert loader.rows.intervals[2].shares == {"books": 1.0}
    [again] = loaders(1, rows=by_hand)
    check = state_check(again, state)
    assert check.holds
    assert "row 24 on, by weights {'code': 0.25, 'web': 1}: still to come" in check.says
    assert again.rows.amendments == loader.rows.amendments
    assert_same_batches(rest(loader), rest(again))
    assert again.report().sources["books"].planned == loader.report().sources["books"].planned
    with pytest.raises(StateMismatch, match=r"the amendment at row 24 in the state: \{'epochs"):
        loaders(1)[0].set_state(loader.get_state())


REFUSED: list[Any] = [
    (MIXED, {"wep": 1}, "the weights name 'wep', not one of the sources 'web', 'code', 'b"),
    (MIXED, [0.5, 0.5], "weights [0.5, 0.5]: expected a number for each source by name"),
    (ROWS["web"], {"web": 1}, "these rows cannot be reweighed: given a PackedDataset, expect"),
    (MIXED.map(dict), {"web": 1}, "expected rows as jaxdata.mix returns them, not transfor"),
    (STRICT, {"books": 1}, "source 'books': demanded 42 rows"),
]


@pytest.mark.parametrize(("rows", "weights", "says"), REFUSED)
def test_what_cannot_be_reweighed_is_refused(rows: Any, weights: Any, says: str) -> None:
    one = jaxdata.Loader(rows, batch_size=6)
    batches, state = [next(one)], one.get_state()
    with pytest.raises((InputError, SourceExhausted)) as caught:
        one.reweigh(weights)
    assert says in str(caught.value)
    assert one.get_state() == state
    assert_same_batches([*batches, next(one)], islice(jaxdata.Loader(rows, batch_size=6), 2))


def test_at_the_end_and_in_later_passes_nothing_is_left_to_reweigh() -> None:
    [loader] = loaders(1, prefetch=3, reiterable=True)
    loader.seek(step=len(loader) - 3)
    state = loader.get_state()
    assert loader.reweigh({"books": 1}) == len(loader.rows)
    assert loader.get_state() == state
    list(loader)
    iter(loader)
    with pytest.raises(InputError, match="reweigh in pass 2: later passes repeat the rows"):
        loader.reweigh({"web": 1})
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        loader.reweigh({"web": 1})


def test_processes_that_ask_for_different_weights_are_told() -> None:
    group = loaders(2)
    for one, board in zip(group, boards(2), strict=True):
        one.board = board

    def reweighed(one: jaxdata.Loader, weights: dict[str, float]) -> str:
        with pytest.raises(InputError) as caught:
            one.reweigh(weights)
        return str(caught.value)

    with ThreadPoolExecutor(2) as threads:
        said = [*threads.map(reweighed, group, [{"web": 1.0}, {"code": 1.0}])]
    assert all("different rows, compared where they were reweighed:" in one for one in said)


def test_a_state_whose_weights_make_no_sense_is_refused() -> None:
    for change, says in (
        ({"weights": {"x": 1}}, "from row 12 on: the weights name 'x'"),
        ({"row": 9_999}, "from row 9,999 on: cannot amend a mixture of"),
    ):
        amendment = {"row": 12, "weights": {"web": 1}, "asked_at": 6, **change}
        state = sealed(loaders(1)[0].get_state() | {"amendments": [amendment]})
        with pytest.raises(StateMismatch, match=f"the run was reweighed {says}"):
            loaders(1)[0].set_state(state)


def test_processes_follow_the_file_that_the_first_reads(tmp_path: Path) -> None:
    files = [tmp_path / "weights.yaml", tmp_path / "nowhere.yaml"]
    controls = [jaxdata.WeightsFile(file) for file in files]
    group = loaders(2, prefetch=1)
    for one, board in zip(group, boards(2), strict=True):
        one.board = board

    def follow() -> list[Any]:
        with ThreadPoolExecutor(2) as threads:
            return [*threads.map(lambda control, one: control.follow(one), controls, group)]

    assert follow() == [None, None]
    files[0].write_text("{web: 1, code: 3}")
    assert follow() == [6, 6]
    assert follow() == [None, None], "nothing new"
    files[0].write_text("size**0.5")
    assert follow() == [6, 6]
    assert group[0].get_state() == group[1].get_state()


def test_a_file_that_cannot_be_used_is_said_once(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "weights.yaml"
    [loader] = loaders(1)
    control = jaxdata.WeightsFile(file)
    for text, says in BAD:
        file.write_text(text)
        caplog.clear()
        assert [control.follow(loader), control.follow(loader)] == [None, None]
        [said] = caplog.messages
        assert said.startswith(f"{file} cannot be used, and the weights stay: {says}")
    file.write_text("")
    assert control.follow(loader) is None
    with pytest.raises(InputError, match="2 processes share these batches and know nothing"):
        control.follow(loaders(2)[0])


BAD = [
    ("{web: [", "it is not YAML: while parsing"),
    ("{wep: 1}", "the weights name 'wep'"),
    ("3", "weights 3: expected a number for each"),
    ("{web: x}", "weights {'web': 'x'}"),
    ("{web: 2020-13-45}", "it: month must be in 1..12"),
    ("[" * 3_000, "it: lists or mappings in each other deeper than"),
    ("{web: " + "9" * 5_000 + "}", "it: Exceeds the limit"),
]


@pytest.mark.slow
def test_real_processes_of_jax_are_reweighed_together(tmp_path: Path) -> None:
    given_ = {name: documents(60, seed=seed) for seed, name in enumerate(SOURCES)}
    data = dataset(tmp_path / "d", given_)
    job = {"task": "reweighed", "output": str(tmp_path), "dataset": str(data), "batch_size": 4}
    job["settings"] = {"balance": "attention"}
    run_pod(job, processes=2, devices=1)
    files = [tmp_path / f"reweighed-2-{process}.json" for process in (0, 1)]
    one, other = (json.loads(file.read_text()) for file in files)
    assert one["rows"] == other["rows"] == [16, 20, 28, 32, 32, None, None, None]
    assert one["state"] == other["state"]
    for process, found in enumerate((one, other)):
        assert f"amendments[4] in process {process} (here): " in found["said"]
        assert "compared where they were reweighed:" in found["said"]
    rows = replayed(one["state"]["amendments"], pod_mixture(data, "best_fit"))
    whole = put_together(tmp_path, "reweighed", 36)
    [loader] = loaders(1, size=36, rows=rows)
    assert_same_batches([whole], [next(loader)])


def state(seed: int = 0, **more: Any) -> dict[str, Any]:
    docs = jaxdata.ArrayDocuments(documents([9] * 8), name="train/web")
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
    several, given = boards(3), [state(7 if number == odd else 0) for number in range(3)]
    for number, said in enumerate(met(several, given)):
        assert "would train on different rows, compared at the first batch:" in said
        assert "give all of them the same dataset, config and state" in said
        own = 7 if number == odd else 0
        assert f"seed in process {number} (here): {own}, in process " in said
        assert f": {7 - own}\n" in said
        assert "next_row" not in said
    assert several[odd].add("told", 0) == 3, "nobody is waited for who has been told"


def test_another_that_is_at_other_rows_for_a_moment_is_waited_for(monkeypatch: Any) -> None:
    here, there = boards(2)
    events = iter(["begins at other rows", "goes away", "comes"])

    def sleep(_: float) -> None:
        match next(events):
            case "begins at other rows":
                with suppress(InterruptedError):
                    compare_states(there, state(7))
            case "goes away":
                raise InterruptedError
            case "comes":
                compare_states(there, state())

    monkeypatch.setattr(steering, "_GRACE", 5.0)
    monkeypatch.setattr(steering, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    compare_states(here, state())
    assert next(events, None) is None


def test_it_waits_for_others_a_time_and_says_so_once(monkeypatch: Any, caplog: Any) -> None:
    alone, other = boards(2)
    slept = list[float]()
    now = map(float, count(1000, 10))
    time = SimpleNamespace(monotonic=lambda: next(now), sleep=slept.append)
    monkeypatch.setattr(steering, "time", time)
    compare_states(alone, state(3))
    assert slept[0] < slept[1] < slept[-1] == 1, "it looks less and less often"
    waited = "process 0: after 120 s 1 of 2 processes"
    assert caplog.messages == [f"{waited} asked for a batch, so that not all rows are compared"]
    assert other.get("last") == "", "what it looked at alone is forgotten"
    with pytest.raises(InputError, match=f"{waited} called reweigh:"):
        compare_states(alone, state(3), "where they were reweighed")
