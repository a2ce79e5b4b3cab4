"""Plans that are kept: whose they must be, and what they must agree with, to be used."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, StateMismatch
from jaxdata.dataset.checksums import with_checksum
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.plan_cache import CachedArrays, cached_arrays
from jaxdata.rows.mixing.remaining import RemainingDocuments
from jaxdata.rows.packing.planner import Planner
from tests import builders
from tests.dataset.strangers import edit_json, little_memory
from tests.test_golden import CHUNKS, FORMAT_2

STRANGER = 12_345
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return builders.dataset(tmp_path / "d", {"web": 300})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "shared"))
    return tmp_path / "shared"


def read_only(dataset: Path) -> Path:
    """A dataset whose plans cannot be kept in it, not even by root."""
    (dataset / "plans").write_text("a file in the way")
    return dataset


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
        Planner, "measure", lambda self, span: calls.append(span) or measure(self, span)
    )
    return calls


def edit_table(plan: Path, change: Callable[[Any], object]) -> None:
    """Change a plan as somebody would who knows how its checksum is made."""
    table = np.load(io.BytesIO(plan.read_bytes()))
    change(table)
    buffer = io.BytesIO()
    np.save(buffer, table)
    plan.write_bytes(with_checksum(buffer.getvalue()))


@as_root
def test_a_plan_of_another_user_is_neither_used_nor_replaced(
    dataset: Path, cache: Path, planned: list[Any]
) -> None:
    rows = len(rows_of(read_only(dataset)))
    (plan,) = plans(cache)
    edit_table(plan, lambda table: np.copyto(table[:, 3:], table[:, 3:] // 2))
    os.chown(plan, STRANGER, STRANGER)
    poison = plan.read_bytes()
    assert len(rows_of(dataset)) == rows
    assert plan.read_bytes() == poison
    assert plans(cache) == [cache / "plans" / str(os.getuid()) / plan.name, plan]
    planned.clear()
    assert len(rows_of(dataset)) == rows
    assert not planned


@as_root
def test_a_plan_of_the_owner_of_the_data_is_used(dataset: Path, planned: list[Any]) -> None:
    rows_of(dataset)
    for path in (dataset / "dataset.json", *plans(dataset)):
        os.chown(path, STRANGER, STRANGER)
    planned.clear()
    rows_of(dataset)
    assert not planned


@pytest.mark.parametrize(
    ("plan_mode", "data_mode", "used"),
    [
        (0o664, 0o644, False),
        (0o646, 0o644, False),
        (0o664, 0o664, True),
        (0o646, 0o664, False),
        (0o646, 0o666, True),
    ],
)
def test_a_plan_that_others_can_write_is_used_only_if_they_can_write_the_data(
    dataset: Path, planned: list[Any], plan_mode: int, data_mode: int, used: bool
) -> None:
    rows = len(rows_of(dataset))
    (plan,) = plans(dataset)
    plan.chmod(plan_mode)
    (dataset / "dataset.json").chmod(data_mode)
    planned.clear()
    assert len(rows_of(dataset)) == rows
    assert (not planned) == used


def test_nobody_else_can_write_a_plan(dataset: Path, cache: Path, planned: list[Any]) -> None:
    before = os.umask(0)
    try:
        rows_of(read_only(dataset))
    finally:
        os.umask(before)
    (plan,) = plans(cache)
    assert plan.stat().st_mode & 0o777 == 0o644
    planned.clear()
    rows_of(dataset)
    assert not planned


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.touch, make_huge],
)
def test_what_is_no_plan_is_passed_by(
    dataset: Path, make: Callable[[Path], object], planned: list[Any]
) -> None:
    rows = len(rows_of(dataset))
    (plan,) = plans(dataset)
    plan.unlink()
    make(plan)
    with little_memory():
        assert len(rows_of(dataset)) == rows
    planned.clear()
    assert len(rows_of(dataset)) == rows
    assert not planned


FIRST, DOCUMENTS, TARGETS, ROWS, FILLED, TRAINED, OVERLAP = range(7)


WRONG: dict[str, Callable[[Any], object]] = {
    "negative": lambda table: table.__setitem__((0, OVERLAP), -1),
    "a document left out": lambda table: table.__setitem__((1, DOCUMENTS), 99),
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


@pytest.mark.parametrize("shape", ["(2, 9)", "(99999999999999, 9)", "(27,)", "[3, 9]"])
def test_the_shape_of_a_plan_is_not_trusted(dataset: Path, shape: str) -> None:
    rows = rows_of(dataset).plan
    (plan,) = plans(dataset)
    content = plan.read_bytes()
    header = content[:-32].replace(b"(3, 9), }" + b" " * 20, f"{shape}, }}".encode().ljust(29))
    assert header != content[:-32]
    plan.write_bytes(with_checksum(header))
    with little_memory():
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


@pytest.mark.parametrize("column", ["length", "anchor"])
def test_lengths_are_compared_when_they_are_planned(dataset: Path, column: str) -> None:
    chunk = dataset / "train/web/index" / column / "c/0"
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
    assert many.table.identity()["lanes"] == 8
    state = jaxdata.Loader(many, batch_size=4).get_state()
    with pytest.raises(StateMismatch, match="lanes was 8, is 2"):
        jaxdata.Loader(few, batch_size=4).set_state(state)
    remainders = [RemainingDocuments(rows.table, 5) for rows in (many, few)]
    assert len({each.fingerprint for each in remainders}) == 2, "other rows come before the fifth"


def test_datasets_that_claim_the_same_fingerprint_share_no_plan(
    dataset: Path, tmp_path: Path, cache: Path
) -> None:
    claims = json.loads((dataset / "dataset.json").read_bytes())["sources"]["train/web"]
    lengths = np.random.default_rng(0).permutation(documents_of(dataset).lengths)
    other = builders.dataset(tmp_path / "other", {"web": lengths})
    edit_json(
        other / "dataset.json",
        lambda fields: fields["sources"]["train/web"].update(fingerprint=claims["fingerprint"]),
    )
    expected = rows_of(shutil.copytree(dataset, tmp_path / "copy")).plan
    stranger = rows_of(read_only(other)).plan
    assert stranger != expected
    assert rows_of(read_only(dataset)).plan == expected
    assert len(plans(cache)) == 2


def test_a_plan_that_can_be_kept_nowhere_is_made_every_time(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    assert len(rows_of(read_only(dataset))) > 90


def test_arrays_are_computed_once_and_mapped_again_also_in_a_copy(dataset: Path) -> None:
    documents, calls = documents_of(dataset), list[int]()

    def kept() -> CachedArrays:
        shapes = [("<i8", 5), ("<i2", 3)]
        return cached_arrays(documents, {"a": 1}, compute, shapes, "some")

    def compute() -> list[Any]:
        calls.append(1)
        return [np.arange(5), np.arange(3) + 7]

    for _ in range(2):
        found = kept()
        for arrays in (found.arrays, pickle.loads(pickle.dumps(found)).arrays):
            assert [each.tolist() for each in arrays] == [[0, 1, 2, 3, 4], [7, 8, 9]]
        assert len(calls) == 1
    (file,) = (dataset / "plans").glob("some*")
    file.write_bytes(file.read_bytes()[:-1])
    assert kept().arrays[1].tolist() == [7, 8, 9]
    assert len(calls) == 2, "a file of another size is not used"
