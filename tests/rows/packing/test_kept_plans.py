"""Plans that are kept, in files and in memory: whose they are, and what they must agree with."""

import io
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset.manifest import with_checksum
from jaxdata.dataset.opening import ConvertedDocuments
from jaxdata.rows.packing import planner
from jaxdata.rows.packing.planner import PlanMemory, Planner
from jaxdata.rows.packing.settings import PackSettings
from tests import builders
from tests.commands import assert_done, forked, in_a_process
from tests.test_golden import CHUNKS, FORMAT_2

Patch = pytest.MonkeyPatch


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


def edit_table(plan: Path, change: Callable[[Any], object]) -> None:
    """Change a plan as somebody would who knows how its checksum is made."""
    table = np.load(io.BytesIO(plan.read_bytes()))
    change(table)
    buffer = io.BytesIO()
    np.save(buffer, table)
    plan.write_bytes(with_checksum(buffer.getvalue()))


WRONG: dict[str, Callable[[Any], object]] = {
    "negative": lambda table: table.__setitem__((0, 6), -1),
    "a larger block": lambda table: table.__setitem__((0, 1), 101),
    "more targets": lambda table: np.add(table[:, 2], 1, out=table[:, 2]),
    "too few rows": lambda table: np.copyto(table[:, 3], 1),
    "blocks that do not follow": lambda table: table.__setitem__((1, 0), 99),
    "more trained than is filled": lambda table: np.add(table[:, 5], 10**6, out=table[:, 5]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_does_not_add_up_is_made_again(dataset: Path, name: str) -> None:
    rows = rows_of(dataset).plan
    (plan,) = plans(dataset)
    content = plan.read_bytes()
    edit_table(plan, WRONG[name])
    assert plan.read_bytes() != content
    assert (rows_of(dataset).plan, plan.read_bytes()) == (rows, content)


def test_chunks_are_kept_and_cut_again_where_they_do_not_ascend(
    dataset: Path, monkeypatch: Patch
) -> None:
    def packed() -> Any:
        return jaxdata.pack(documents_of(dataset), seq_len=64, chunk_bytes=1_000)

    rows, found = packed().plan, {path: path.read_bytes() for path in plans(dataset)}
    (chunks,) = [path for path, content in found.items() if np.load(io.BytesIO(content)).ndim == 1]
    with monkeypatch.context() as patch:
        patch.setattr(ConvertedDocuments, "page_ends", pytest.fail)
        assert packed().plan == rows
    edit_table(chunks, lambda starts: starts.__setitem__(2, starts[1]))
    assert chunks.read_bytes() != found[chunks]
    assert (packed().plan, chunks.read_bytes()) == (rows, found[chunks])


def test_a_block_that_was_planned_otherwise_is_named(dataset: Path) -> None:
    """One row more than there are adds up, until the block is used."""
    rows_of(dataset)
    (plan,) = plans(dataset)
    edit_table(plan, lambda table: table.__setitem__((0, 3), table[0, 3] + 1))
    rows = rows_of(dataset)
    with pytest.raises(DatasetError) as error:
        [rows[number] for number in range(len(rows))]
    assert str(error.value) == (
        f"{dataset}: the lengths of train/web are not those that were planned: jaxdata verify "
        f"{dataset} names what is damaged; if nothing is, delete {dataset}/plans"
    )


def test_plans_are_found_by_the_names_they_always_had(tmp_path: Path, monkeypatch: Patch) -> None:
    """Of single documents; of chunks, with the table of these; lanes use the same plan."""
    dataset = shutil.copytree(FORMAT_2, tmp_path / "data")
    words = jaxdata.open_dataset(dataset).source("train", "words")
    settings: list[dict[str, Any]] = [{}, CHUNKS, CHUNKS | {"lanes": 1}]
    first = [jaxdata.pack(words, seq_len=64, **each).plan for each in settings]
    assert sorted(path.stem for path in plans(dataset)) == [
        "2a7ce4fe93d2f2465107b82c6b3fa698",
        "a97afce6ade3763c2c02bfc09c535111",
        "c73db5a8953669c6c214fabe3fa9efc9",
    ]
    monkeypatch.setattr(Planner, "measure", pytest.fail)
    assert [jaxdata.pack(words, seq_len=64, **each).plan for each in settings] == first


def test_blocks_that_begin_together_are_planned_once(tmp_path: Path, monkeypatch: Patch) -> None:
    builders.dataset(tmp_path / "d", {"web": 900})
    pack = {"seq_len": 64, "chunk_bytes": 512, "block_bytes": 1024}
    table = jaxdata.pack(documents_of(tmp_path / "d"), **pack).table
    planned, plans_of = list[list[int]](), Planner.plans

    def noted(self: Planner, blocks: list[int]) -> Any:
        planned.append(blocks)
        return plans_of(self, blocks)

    monkeypatch.setattr(Planner, "plans", noted)
    for _ in range(2):
        table.segments(np.arange(len(table)))
    assert sorted(np.concatenate(planned).tolist()) == list(range(table.blocks))
    assert {*map(len, planned[:-1])} == {16}


def test_the_table_does_not_depend_on_what_is_planned_together_nor_where(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    builders.dataset(tmp_path / "d", {"web": 900})
    docs, pack = documents_of(tmp_path / "d"), planner.pack_blocks
    blocks = {"chunk_bytes": 512, "block_bytes": 4096, "lanes": 2}
    settings = PackSettings.checked(seq_len=64, strategy="crop", **blocks)
    expected = Planner(docs, settings).table().tolist()
    assert len(expected) > 10
    packed: list[int] = []
    noted = lambda *given: packed.append(len(given[0])) or pack(*given)  # noqa: E731
    monkeypatch.setattr(planner, "pack_blocks", noted)
    for together in (1, 120, 400):
        monkeypatch.setattr(planner, "_TOGETHER", together)
        packed.clear()
        assert Planner(docs, settings).table().tolist() == expected
        assert max(packed) < together + max(line[1] for line in expected)
        assert sum(packed) == len(docs)
    plans = Planner(docs, settings).plans(range(len(expected)))
    assert [plan.rows for plan in plans] == [line[3] for line in expected]
    monkeypatch.setattr(planner, "_WORTH_WORKERS", 2)
    monkeypatch.setattr(planner, "_A_TASK", 100)
    packed.clear()
    seen: list[tuple[int, int]] = []
    bar = nullcontext(lambda *at: seen.append(at))
    monkeypatch.setattr(planner, "progress_bar", {"planning train/web": bar}.__getitem__)
    assert Planner(docs, settings).table().tolist() == expected
    assert len(seen) > 1
    assert seen[-1] == (len(expected), len(expected))
    assert not packed, "in other processes"


BYTES = 100


def plan(size: int = BYTES) -> Any:
    return np.zeros(size, np.uint8)


def held(memory: PlanMemory) -> list[Any]:
    return list(memory._held)


USES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60)


@given(st.integers(1, 400), USES)
def test_it_holds_those_used_last_within_its_bytes(most: int, uses: list[tuple[int, int]]) -> None:
    memory, expected = PlanMemory(most), dict[Any, int]()
    for number, size in uses:
        key = (0, number)
        found = memory.get(key, lambda size=size: plan(size))
        expected[key] = expected.pop(key, size)
        assert found.nbytes == expected[key]  # what was made first, as long as it is held
        while sum(expected.values()) > most and len(expected) > 1:
            del expected[next(iter(expected))]
        assert (held(memory), memory.nbytes) == ([*expected], sum(expected.values()))


def test_values_go_with_their_owner() -> None:
    memory, one, other = PlanMemory(10**6), set[int](), set[int]()
    first, second = memory.owned_by(one), memory.owned_by(other)
    for token in (first, second):
        memory.get((token, 0), plan)
    del one
    memory.get((second, 1), plan)
    assert (held(memory), memory.nbytes) == ([(second, 0), (second, 1)], 2 * BYTES)


def fork_while_one_is_kept() -> None:
    memory = PlanMemory(10**6)
    kept = memory.get((0, 0), plan)
    memory.nbytes += 7
    memory._lock.acquire()  # as if another thread kept something

    def in_the_copy() -> None:
        assert memory.get((0, 0), pytest.fail) is kept, "it is not made"
        assert memory.nbytes == BYTES

    child = forked(in_the_copy)
    memory._lock.release()
    assert_done(child)


def test_a_forked_copy_waits_for_no_thread_of_the_original() -> None:
    in_a_process(fork_while_one_is_kept)


def test_lengths_of_several_blocks_are_fetched_at_once_only_to_plan(monkeypatch: Patch) -> None:
    docs = jaxdata.ArrayDocuments([np.zeros(1 + n % 60, np.uint16) for n in range(400)])
    settings = {"chunk_bytes": 512, "block_bytes": 2_048, "lanes": 1}
    table = jaxdata.pack(docs, seq_len=64, **settings).table
    fetched: list[set[int]] = []
    monkeypatch.setattr(type(docs), "is_far", True)
    monkeypatch.setattr(type(docs), "fetch_lengths", lambda _, asked: fetched.append({*asked}))
    deal = table.deal(0)
    rows = np.split(np.arange(deal.rows), deal._visits(0)[1][:-1])[:3]
    table.segments(rows[0])
    assert fetched == [], "one block is planned by itself"
    found = table.segments(np.concatenate(rows))
    held = np.split(found.document, np.searchsorted(found.row, np.cumsum([*map(len, rows[:2])])))
    assert len(fetched) == 1
    assert {*held[1], *held[2]} <= fetched[0]
    assert not {*held[0]} & fetched[0]
    table.segments(np.concatenate(rows))
    assert len(fetched) == 1, "they are planned"
