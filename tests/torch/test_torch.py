"""The torch side: the JAX loader's rows to the bit, in its memory, whoever makes the batches."""

import copy
import gc
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import DatasetError, InputError, install_command
from jaxdata.feed.layouts import varlen
from jaxdata.testing import distinct_documents, write_dataset
from jaxdata.torch.loader import RankNotes, board_of
from tests.commands import python
from tests.feed.pod import mixed
from tests.torch.conftest import BATCH, check, loader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def test_by_itself_and_by_ranks(rows: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = loader(rows, num_workers=1)
    assert len(one) == len(reference)
    check(one, reference)
    with pytest.raises(InputError, match="this loader is at its end"):
        iter(one)
    assert one.source_names == ["web", "code", "wiki"]
    one.close()
    ranks = [loader(rows, rank=rank, world_size=3, prefetch=rank) for rank in range(3)]
    steps = zip(*ranks, strict=True)
    whole = ({key: torch.cat([p[key] for p in step]) for key in step[0]} for step in steps)
    check(whole, reference)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    check([next(loader(rows))], [{name: a[4:8] for name, a in reference[0].items()}])


def test_in_the_workers_of_a_data_loader(rows: Any, reference: Any) -> None:
    """A running loader may be forked: its thread stays with the parent, who goes on."""
    one = loader(rows)
    check([next(one)], reference[:1])
    check(DataLoader(one, batch_size=None, num_workers=2), reference[1:])
    check(one, reference[1:])
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH)
    check(DataLoader(batches, batch_size=None, num_workers=2), reference)


@pytest.mark.exhaustive
def test_spawned_workers(rows: Any, reference: Any) -> None:
    """A function of the user's goes along, though Python's own way to send it would not take it."""
    same = rows.map(lambda row: row)
    settings = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "spawn"}
    check(islice(DataLoader(loader(same), **settings), 6), reference[:6])
    batches = jaxdata.torch.Batches(same, batch_size=BATCH, start_row=2 * BATCH)
    check([copy.deepcopy(batches)[1]], [reference[3]])  # the way that spawning takes


def test_lanes_extras_layouts_ramps_and_skips_are_those_of_jax(path: Path) -> None:
    rows, ramp = mixed(path, "lanes 8"), [(0, 4), (60, 12), (150, 6)]
    settings = {"skip_rows": [(5, 9), (100, 131)], "drop_remainder": True, "layout": "maxtext"}
    settings["extras"] = ("source", "document")
    expected = list(jaxdata.Loader(rows, batch_size=ramp, prefetch=0, **settings))
    check(loader(rows, ramp, **settings), expected)
    batches = jaxdata.torch.Batches(rows, batch_size=ramp, **settings)
    check((batches[step] for step in range(len(batches))), expected)


def test_batches_begin_at_any_row(rows: Any) -> None:
    begun = jaxdata.Loader(rows, batch_size=BATCH, prefetch=0)
    begun.seek(row=31)
    expected = list(begun)
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH, start_row=31)
    assert len(batches) == len(expected)
    check([batches[k] for k in range(len(batches))], expected)
    check([batches[-1]], expected[-1:])
    with pytest.raises(IndexError):
        batches[len(batches)]
    assert batches.get_state(3)["next_row"] == 31 + 3 * BATCH


def test_remote_data_is_refused_in_a_forked_worker() -> None:
    dataset = write_dataset("memory://torch", {"train/a": distinct_documents([30, 50, 20] * 20)})
    rows = jaxdata.pack(dataset.source("train", "a"), seq_len=32)
    next(loader(rows, 2))
    for batches in (loader(rows, 2), jaxdata.torch.Batches(rows, batch_size=2)):
        with pytest.raises(DatasetError, match=r"forked process: start workers with 'spawn'"):
            next(iter(DataLoader(batches, batch_size=None, num_workers=1)))


def test_a_config_is_loaded(path: Path) -> None:
    config = {"dataset": str(path), "pack": {"seq_len": 32}, "loader": {"batch_size": 6}}
    check(jaxdata.torch.load(config), list(jaxdata.load(config)))


def test_settings_that_make_no_sense(rows: Any) -> None:
    for settings, message in (
        ({"rank": 1}, "rank=1, world_size=None: give both"),
        ({"sharding": object()}, "give rank= and world_size= for tensors"),
        ({"sharding_": 1}, "there is no setting 'sharding_'"),
    ):
        with pytest.raises(InputError, match=message):
            loader(rows, **settings)


def test_without_torch_it_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; import jaxdata; jaxdata.torch"
    expected = f"torch is not installed; install it with: {install_command('torch')}"
    assert expected in python("-c", code, status=1).stderr


def test_ranks_have_a_board() -> None:
    store = torch.distributed.HashStore()
    ranks = [RankNotes(store, rank, 2) for rank in (0, 1, 1)]  # one of them twice: tensor parallel
    assert [(each.add("n", 0), each.get("note")) for each in ranks] == [(0, "")] * 3
    ranks[0].put("note", "a note")
    assert [each.get("note") for each in ranks] == ["a note"] * 3
    assert [each.add("n", 1) for each in ranks] == [1, 2, 3]
    assert (ranks[0].leads, ranks[1].leads, ranks[1].process) == (True, False, "rank 1")
    assert board_of(0, 2) is None, "no process group"


def test_tensors_are_the_memory_of_arrays_and_never_change(rows: Any, reference: Any) -> None:
    one = loader(rows)
    (placement,), arrays = one._placements.values(), list[int]()
    inner = placement.place
    placement.place = lambda batch: arrays.append(batch["inputs"].ctypes.data) or inner(batch)
    held = list(one)
    assert [batch["inputs"].data_ptr() for batch in held] == arrays, "no copy"
    parts = [batch["targets"][3:5] for batch in loader(rows, num_workers=1)]
    gc.collect()
    check(held, reference)
    for part, batch in zip(parts, reference, strict=True):
        assert np.array_equal(part.numpy(), batch["targets"][3:5])
    places = {batch["inputs"].data_ptr() for batch in loader(rows, prefetch=0)}
    assert len(places) < 8 < len(reference), "memory is used again when no tensor refers to it"


def test_int64_and_layouts_and_numbers(rows: Any, reference: Any) -> None:
    batch = next(loader(rows, long=True))
    assert batch["targets"].dtype == torch.int64
    assert batch["loss_mask"].dtype == torch.bool
    assert np.array_equal(batch["targets"].numpy(), reference[0]["targets"])
    first = next(loader(rows, layout=lambda b: {**b, **varlen(b["segment_ids"])}))
    assert type(first["max_seqlen"]) is int
    assert first["cu_seqlens"].dtype == torch.int32


def test_a_device_of_ones_own(rows: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is not awaited reads the next batch, on a Mac's GPU for one: pytorch#189690."""
    check(loader(rows, device="cpu"), reference)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device='cuda:0': torch finds no CUDA device here"):
            loader(rows, device="cuda:0")
    inner, awaited = torch.Tensor.to, []

    def spy(value: torch.Tensor, *args: Any, non_blocking: bool = False) -> torch.Tensor:
        awaited.append(not non_blocking)
        return inner(value, *args, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    batch = next(loader(rows, device="meta", prefetch=0))
    assert {value.device.type for value in batch.values()} == {"meta"}
    assert awaited == [True] * 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_batches_on_a_gpu(rows: Any, reference: Any) -> None:
    held = list(loader(rows, device="cuda", num_workers=2, long=True))
    assert all(value.is_cuda for batch in held for value in batch.values())
    back = [{name: value.cpu() for name, value in batch.items()} for batch in held]
    for batch, expected in zip(back, reference, strict=True):
        assert all(np.array_equal(batch[name].numpy(), expected[name]) for name in expected)
