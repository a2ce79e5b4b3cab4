"""The torch side: the JAX loader's rows to the bit, whoever makes the batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata
import jaxdata.torch
from jaxdata.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.torch.worker_steps import Turn
from tests.feed.pod import mixed
from tests.torch.conftest import (
    BATCH,
    SIZES,
    STEP,
    check,
    from_batches,
    jax_state,
    loader,
    state_by_itself,
    state_of_stateful,
    stateful,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (0, 3), (2, 2)])
def test_by_itself(rows: Any, reference: Any, num_workers: int, prefetch: int) -> None:
    one = loader(rows, num_workers=num_workers, prefetch=prefetch)
    assert len(one) == len(reference)
    check(one, reference)
    with pytest.raises(InputError, match="this loader is at its end"):
        iter(one)
    one.reset()
    check([next(one)], reference[:1])
    one.close()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_in_a_data_loader(rows: Any, reference: Any, workers: int) -> None:
    check(from_batches(rows, workers), reference)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_the_loader_in_a_data_loader(rows: Any, reference: Any, kind: Any, workers: int) -> None:
    check(kind(loader(rows), batch_size=None, num_workers=workers), reference)


@pytest.mark.exhaustive
def test_spawned_workers(rows: Any, reference: Any) -> None:
    """A function of the user's goes along, though Python's own way to send it would not take it."""
    same = rows.map(lambda row: row)
    settings = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "spawn"}
    check(islice(DataLoader(loader(same), **settings), 6), reference[:6])
    batches = jaxdata.torch.Batches(same, batch_size=BATCH, start_row=2 * BATCH)
    check([copy.deepcopy(batches)[1]], [reference[3]])  # the way that spawning takes


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_concatenated_are_the_batch(rows: Any, reference: Any, world_size: int) -> None:
    parts = [
        list(stateful(loader(rows, rank=rank, world_size=world_size), 2))
        for rank in range(world_size)
    ]
    joined = [
        {key: torch.cat([part[key] for part in step]) for key in step[0]}
        for step in zip(*parts, strict=True)
    ]
    check(joined, reference)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", ["order 2", "lanes 1", "lanes 8", "lanes 512"])
def test_both_orders_and_any_lanes(path: Path, pack: str) -> None:
    rows = mixed(path, pack)
    numpy = jaxdata.Loader(rows, batch_size=BATCH, prefetch=0)
    assert (np.diff(numpy.batch_rows(3)) > 0).all() == (pack in ("order 2", "lanes 1"))
    reference = list(numpy)
    check(loader(rows), reference)
    check(from_batches(rows, 2), reference)
    ranks = [stateful(loader(rows, rank=rank, world_size=2), rank) for rank in range(2)]
    joined = zip(*ranks, strict=True)
    check(({key: torch.cat([a[key], b[key]]) for key in a} for a, b in joined), reference)
    for begin in (jax_state, state_by_itself, state_of_stateful(2)):
        again = loader(rows)
        again.load_state_dict(begin(rows))
        check(again, reference[STEP:])


def test_what_loaders_add_is_there_too(rows: Any) -> None:
    extras = {"extras": ("source", "document"), "layout": "maxtext"}
    expected = list(jaxdata.Loader(rows, batch_size=BATCH, prefetch=0, **extras))
    assert {"source", "document", "inputs_segmentation"} <= set(expected[0])
    check(stateful(loader(rows, **extras), 2), expected)
    one = loader(rows)
    list(one)
    assert one.source_names == ["web", "code", "wiki"]
    assert one.wait_seconds > 0


@pytest.mark.exhaustive
def test_ramps_skips_and_short_ends(rows: Any) -> None:
    settings = {"skip_rows": [(5, 9), (100, 131)], "drop_remainder": True}
    ramp = [(0, 4), (60, 12), (150, 6)]
    expected = list(jaxdata.Loader(rows, batch_size=ramp, prefetch=0, **settings))
    check(stateful(loader(rows, ramp, **settings), 3), expected)
    batches = jaxdata.torch.Batches(rows, batch_size=ramp, **settings)
    check(DataLoader(batches, batch_size=None, num_workers=2), expected)
    one = stateful(loader(rows, ramp, **settings), 3)
    list(islice(one, 14))
    other = loader(rows, ramp, **settings)
    other.load_state_dict(one.state_dict())
    check(other, expected[14:])


def test_batches_begin_at_any_row(rows: Any) -> None:
    begun = jaxdata.Loader(rows, batch_size=BATCH, prefetch=0)
    begun.seek(row=31)
    expected = list(begun)
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH, start_row=31)
    assert len(batches) == len(expected)
    check([batches[k] for k in range(len(batches))], expected)
    check([batches[-1], batches[2]], [expected[-1], expected[2]])
    with pytest.raises(IndexError):
        batches[len(batches)]
    assert batches.get_state(3)["next_row"] == 31 + 3 * BATCH


def test_torchs_own_checkpoints(rows: Any, tmp_path: Path) -> None:
    """Of a state in `torch.distributed.checkpoint` nothing is lost; a plain file needs no code."""
    one = loader(rows)
    next(one)
    one.skip(30, 40)
    next(one)
    torch.distributed.checkpoint.save({"loader": one}, checkpoint_id=tmp_path / "all")
    other = loader(rows, 6)
    torch.distributed.checkpoint.load({"loader": other}, checkpoint_id=tmp_path / "all")
    assert other.state_dict() == one.state_dict()
    torch.save(one.state_dict(), tmp_path / "one")
    assert torch.load(tmp_path / "one", weights_only=True) == one.state_dict()


def test_rows_of_another_length_from_a_row_on(path: Path, rows: Any) -> None:
    opened = jaxdata.open_dataset(path)
    longer = {
        n: jaxdata.pack(opened.source("train", n), seq_len=48, block_bytes=6400) for n in SIZES
    }
    rest = [jaxdata.Phase(rows=80, weights={"web": 0.5, "code": 0.5})]
    amended = rows.amend(70, rows=longer, phases=rest)
    expected = list(jaxdata.Loader(amended, batch_size=BATCH, prefetch=0))
    assert {batch["inputs"].shape[1] for batch in expected} == {32, 48}
    check(stateful(loader(amended), 3), expected)
    check(from_batches(amended, 2), expected)
    for step in (3, 8):
        one = stateful(loader(amended), 2)
        list(islice(one, step))
        again = loader(amended)
        again.load_state_dict(one.state_dict())
        check(stateful(again, 1), expected[step:])


def test_workers_cannot_go_on_each_by_itself_with_other_sizes(rows: Any, reference: Any) -> None:
    again = stateful(loader(rows, skip_rows=[(90, 95)]), 1)
    again.load_state_dict(state_of_stateful(1)(rows))
    with pytest.raises(StateMismatch, match="Give the state to load_state_dict of the jaxdata"):
        next(iter(again))
    worker, other = loader(rows), loader(rows, 6)
    for one in (worker, other):
        one._become_worker(Turn(worker=1, workers=2, ahead=1))
    check([next(worker)], reference[1:2])
    with pytest.raises(StateMismatch, match=r"batch_size was \[\(0, 12\)\] .* and is \[\(0, 6\)\]"):
        other.load_state_dict(worker.state_dict())


def test_side_arrays_are_tensors() -> None:
    tokens = [np.arange(1, 9)] * 9
    side = {"weight": [each.astype(np.float32) for each in tokens], "at": tokens}
    rows = jaxdata.pack(jaxdata.ArrayDocuments(tokens, side=side), seq_len=8)
    for batch in jaxdata.torch.Loader(rows, batch_size=3, extras=("weight", "target_at")):
        assert torch.equal(batch["weight"], batch["inputs"].float())
        assert torch.equal(batch["target_at"], batch["targets"].long())


def test_a_halt_comes_after_the_last_batch(path: Path) -> None:
    opened = jaxdata.open_dataset(path)
    packed = {n: jaxdata.pack(opened.source("train", n), seq_len=32) for n in ("web", "wiki")}
    phases = [jaxdata.Phase(rows=10_000, weights={"web": 0.5, "wiki": 0.5})]
    rows = jaxdata.mix(packed, phases=phases, on_exhaustion="halt")
    expected = until_exhausted(jaxdata.Loader(rows, batch_size=5, prefetch=0))
    check(until_exhausted(stateful(loader(rows, 5), 3)), expected)


def until_exhausted(batches: Iterable[Any]) -> list[Any]:
    delivered = []

    def take_all() -> None:
        for batch in batches:
            delivered.append(batch)

    with pytest.raises(SourceExhausted, match="wiki"):
        take_all()
    assert len(delivered) > 3
    return delivered
