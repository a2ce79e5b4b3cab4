"""Plans that are kept, in files and in memory: whose they are, and what they must agree with."""

from __future__ import annotations

import gc
import io
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, StateMismatch
from jaxdata.dataset.checksums import with_checksum
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.rows.mixing.remaining import RemainingDocuments
from jaxdata.rows.packing import dealt_blocks, planner
from jaxdata.rows.packing.dealt_blocks import PLANS, PlanMemory
from jaxdata.rows.packing.planner import Planner
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.testing import distinct_documents
from tests import builders
from tests.feed.streams.test_forks import assert_done, forked, in_a_process
from tests.test_golden import CHUNKS, FORMAT_2


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return builders.dataset(tmp_path / "d", {"web": 300})


def documents_of(dataset: Path) -> ConvertedDocuments:
    source = jaxdata.open_dataset(dataset).source("train", "web")
    assert isinstance(source, ConvertedDocuments)
    return source


def rows_of(dataset: Path) -> Any:
    """Three blocks of 100 documents."""
    return jaxdata.pack(documents_of(dataset), seq_len=64, block_bytes=6_410)


def plans(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.npy"))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was planned since: nothing, where a kept plan was used."""
    calls: list[Any] = []
    measure = Planner.measure
    monkeypatch.setattr(
        Planner, "measure", lambda self, blocks: calls.append(blocks) or measure(self, blocks)
    )
    return calls


def edit_table(plan: Path, change: Callable[[Any], object]) -> None:
    """Change a plan as somebody would who knows how its checksum is made."""
    table = np.load(io.BytesIO(plan.read_bytes()))
    change(table)
    buffer = io.BytesIO()
    np.save(buffer, table)
    plan.write_bytes(with_checksum(buffer.getvalue()))


FIRST, DOCUMENTS, TARGETS, ROWS, FILLED, TRAINED, OVERLAP = range(7)
WRONG: dict[str, Callable[[Any], object]] = {
    "negative": lambda table: table.__setitem__((0, OVERLAP), -1),
    "a larger block": lambda table: table.__setitem__((0, DOCUMENTS), 101),
    "more targets": lambda table: np.add(table[:, TARGETS], 1, out=table[:, TARGETS]),
    "too few rows": lambda table: np.copyto(table[:, ROWS], 1),
    "blocks that do not follow": lambda table: table.__setitem__((1, FIRST), 99),
    "more trained than is filled": lambda table: np.add(
        table[:, TRAINED], 10**6, out=table[:, TRAINED]
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_does_not_add_up_is_made_again(dataset: Path, name: str) -> None:
    rows = rows_of(dataset).plan
    (plan,) = plans(dataset)
    content = plan.read_bytes()
    edit_table(plan, WRONG[name])
    assert plan.read_bytes() != content
    assert rows_of(dataset).plan == rows
    assert plan.read_bytes() == content


@pytest.mark.parametrize("shape", ["(2, 9)", "(99999999999999, 9)", "(27,)"])
def test_the_shape_of_a_plan_is_not_trusted(dataset: Path, shape: str) -> None:
    rows = rows_of(dataset).plan
    (plan,) = plans(dataset)
    content = plan.read_bytes()
    header = content[:-32].replace(b"(3, 9), }" + b" " * 20, f"{shape}, }}".encode().ljust(29))
    assert header != content[:-32]
    plan.write_bytes(with_checksum(header))
    assert rows_of(dataset).plan == rows
    assert plan.read_bytes() == content


def test_a_block_that_was_planned_otherwise_is_named(dataset: Path) -> None:
    """One row more than there are adds up, until the block is used."""
    rows_of(dataset)
    (plan,) = plans(dataset)
    edit_table(plan, lambda table: table.__setitem__((0, ROWS), table[0, ROWS] + 1))
    rows = rows_of(dataset)
    with pytest.raises(DatasetError) as error:
        [rows[number] for number in range(len(rows))]
    assert str(error.value) == (
        f"{dataset}: the lengths of train/web are not those that were planned: jaxdata verify "
        f"{dataset} names what is damaged; if nothing is, delete {dataset}/plans"
    )


def test_lengths_are_compared_when_they_are_planned(dataset: Path) -> None:
    chunk = dataset / "train/web/index/length/c/0"
    data = bytearray(chunk.read_bytes())
    data[16] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(DatasetError) as error:
        rows_of(dataset)
    assert str(error.value) == (
        f"{dataset}: the index of train/web is not what was written: jaxdata verify {dataset} "
        "names what is damaged"
    )


NAMES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "documents": ({}, ["c73db5a8953669c6c214fabe3fa9efc9"]),
    "chunks": (CHUNKS, ["a97afce6ade3763c2c02bfc09c535111", "2a7ce4fe93d2f2465107b82c6b3fa698"]),
    "chunks, one lane": (CHUNKS | {"lanes": 1}, []),  # the plan is the same
}
"""settings of `pack`, and what it keeps: a plan and, if there is none yet, a table of chunks"""


def test_plans_are_found_by_the_names_they_always_had(tmp_path: Path, planned: list[Any]) -> None:
    dataset, expected = shutil.copytree(FORMAT_2, tmp_path / "data"), set[str]()

    def summary(settings: Any) -> Any:
        words = jaxdata.open_dataset(dataset).source("train", "words")
        return jaxdata.pack(words, seq_len=64, **settings).plan

    made = {}
    for name, (settings, files) in NAMES.items():
        made[name], expected = summary(settings), expected | set(files)
        assert {path.stem for path in plans(dataset)} == expected, name
    planned.clear()
    for name, (settings, _) in NAMES.items():
        assert summary(settings) == made[name]
    assert not planned


def test_other_lanes_use_the_same_plan_and_are_another_run(
    dataset: Path, planned: list[Any]
) -> None:
    many = jaxdata.pack(documents_of(dataset), seq_len=64, **CHUNKS | {"lanes": 8})
    planned.clear()
    few = jaxdata.pack(documents_of(dataset), seq_len=64, **CHUNKS | {"lanes": 2})
    assert few.plan == many.plan
    assert not planned
    state = jaxdata.Loader(many, batch_size=4).get_state()
    with pytest.raises(StateMismatch, match="lanes was 8, is 2"):
        jaxdata.Loader(few, batch_size=4).set_state(state)
    remainders = [RemainingDocuments(rows.table, 5) for rows in (many, few)]
    assert len({each.fingerprint for each in remainders}) == 2, "other rows come before the fifth"


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop"])
def test_the_table_does_not_depend_on_what_is_planned_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    builders.dataset(tmp_path / "d", {"web": 900})
    docs, pack = documents_of(tmp_path / "d"), planner.pack_blocks
    settings = PackSettings.checked(
        seq_len=64, strategy=strategy, chunk_bytes=512, block_bytes=4096, lanes=2
    )
    expected = Planner(docs, settings).table().tolist()
    assert len(expected) > 10
    packed: list[int] = []
    monkeypatch.setattr(
        planner, "pack_blocks", lambda *args: packed.append(len(args[0])) or pack(*args)
    )
    for together in (1, 120, 400):
        monkeypatch.setattr(planner, "_TOGETHER", together)
        packed.clear()
        assert Planner(docs, settings).table().tolist() == expected
        assert max(packed) <= max(together, *(line[1] for line in expected))
        assert sum(packed) == len(docs)
    made = Planner(docs, settings)
    assert [made.plan(block).rows for block in range(len(expected))] == [n[3] for n in expected]
    if strategy != "crop":
        return
    monkeypatch.setattr(planner, "_WORTH_WORKERS", 2)
    monkeypatch.setattr(planner, "_A_TASK", 100)
    packed.clear()
    seen: list[tuple[int, int]] = []
    table = Planner(docs, settings).table(lambda done, total: seen.append((done, total)))
    assert table.tolist() == expected, "on all cores"
    assert seen[0] == (0, len(expected)), "first the total"
    assert seen[-1] == (len(expected), len(expected))
    assert not packed, "in other processes"


BYTES = 100


def plan(size: int = BYTES) -> Any:
    return np.zeros(size, np.uint8)


def unexpected() -> Any:
    raise AssertionError("it is there, and need not be made")


def held(memory: PlanMemory) -> list[Any]:
    return list(memory._held)


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60),
)
def test_it_holds_those_used_last_within_its_bytes(most: int, uses: list[tuple[int, int]]) -> None:
    memory, expected = PlanMemory(most), dict[Any, int]()
    for number, size in uses:
        key = (0, number)
        found = memory.get(key, lambda size=size: plan(size))
        expected[key] = expected.pop(key, size)
        assert found.nbytes == expected[key]  # what was made first, as long as it is held
        while sum(expected.values()) > most and len(expected) > 1:
            del expected[next(iter(expected))]
        assert held(memory) == list(expected)
        assert memory.nbytes == sum(expected.values())


class Owner:
    """Whoever has plans."""


class Collecting:
    """A value that has the garbage collector run while its bytes are counted."""

    @property
    def nbytes(self) -> int:
        gc.collect()
        return BYTES


def test_values_go_with_their_owner_also_while_a_value_is_kept() -> None:
    """The collector runs wherever it likes, also where this thread holds the lock."""
    memory, one, other = PlanMemory(10**6), Owner(), Owner()
    first, second = memory.owned_by(one), memory.owned_by(other)
    for block in range(3):
        memory.get((first, block), plan)
        memory.get((second, block), plan)
    del one
    memory.get((second, 3), plan)
    assert held(memory) == [(second, block) for block in range(4)]
    assert memory.nbytes == 4 * BYTES
    other.itself = other  # type: ignore[attr-defined]
    del other
    memory.get((7, 0), Collecting)
    memory.get((7, 1), plan)
    assert held(memory) == [(7, 0), (7, 1)]


def test_packed_rows_leave_nothing() -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([9] * 500))
    rows = jaxdata.pack(docs, seq_len=16, chunk_bytes=64, block_bytes=256, lanes=4)
    token, copied = rows.table.deal(0)._token, pickle.loads(pickle.dumps(rows))
    first = [rows[k]["inputs"].tolist() for k in range(len(rows))]
    assert [key for key in held(PLANS) if key[0] == token]
    assert [copied[k]["inputs"].tolist() for k in range(len(copied))] == first
    del rows, copied
    gc.collect()
    PLANS.get((object(),), plan)
    assert not [key for key in held(PLANS) if key[0] == token]


def test_several_threads_keep_count() -> None:
    memory = PlanMemory(5 * BYTES)

    def use(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 2_000).tolist():
            size = 20 * number + 1
            assert memory.get((0, number), lambda size=size: plan(size)).nbytes == size

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(use, seed) for seed in range(4)]:
            done.result()
    assert memory.nbytes == sum(each.nbytes for each in memory._held.values())
    assert memory.nbytes <= 5 * BYTES


def fork_while_one_is_kept() -> None:
    memory = PlanMemory(10**6)
    kept = memory.get((0, 0), plan)
    memory.nbytes += 7
    memory._lock.acquire()  # as if another thread kept something

    def in_the_copy() -> None:
        assert memory.get((0, 0), unexpected) is kept
        assert memory.nbytes == BYTES

    child = forked(in_the_copy)
    memory._lock.release()
    assert_done(child)


def test_a_forked_copy_waits_for_no_thread_of_the_original() -> None:
    in_a_process(fork_while_one_is_kept)


@pytest.mark.parametrize(
    ("limit", "most"), [("max\n", 2**40), (f"{2**34}\n", 2**34), ("1000\n", 1000), (None, 2**40)]
)
def test_it_takes_its_share_of_what_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, most: int
) -> None:
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr(dealt_blocks, "_LIMITS", (str(path),))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**28}.get)
    assert dealt_blocks._memory() == most
    assert PLANS.most >= 2**29


def test_a_block_is_packed_once_for_its_totals_and_all_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[Any] = []
    pack = planner.pack_blocks
    monkeypatch.setattr(planner, "pack_blocks", lambda *args: packed.append(args) or pack(*args))
    table = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([9] * 40)), seq_len=16).table
    for epoch in range(3):
        found = table.segments(np.arange(len(table)) + epoch * len(table))
        assert sorted(found.document.tolist()) == list(range(40))
    assert len(packed) == 1


def test_lengths_of_several_blocks_are_fetched_at_once_and_only_to_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docs = jaxdata.ArrayDocuments([np.zeros(1 + n % 60, np.uint16) for n in range(400)])
    settings = {"chunk_bytes": 512, "block_bytes": 2_048, "lanes": 1}
    table = jaxdata.pack(docs, seq_len=64, **settings).table
    fetched: list[set[int]] = []
    monkeypatch.setattr(type(docs), "is_far", True)
    monkeypatch.setattr(type(docs), "fetch_lengths", lambda _, asked: fetched.append({*asked}))
    rows = [table.block_rows(0, visit) for visit in range(3)]
    table.segments(rows[0])
    assert fetched == [], "one block is planned by itself"
    found = table.segments(np.concatenate(rows))
    held = np.split(found.document, np.searchsorted(found.row, np.cumsum([*map(len, rows[:2])])))
    assert len(fetched) == 1
    assert {*held[1], *held[2]} <= fetched[0]
    assert not {*held[0]} & fetched[0]
    table.segments(np.concatenate(rows))
    assert len(fetched) == 1, "they are planned"
