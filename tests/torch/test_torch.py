"""The torch side: the JAX loader's rows to the bit, and each goes on where the other stopped."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
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
from jaxdata.errors import DatasetError, InputError, SourceExhausted, StateMismatch
from jaxdata.feed.attention import varlen
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset
from jaxdata.torch.worker_steps import Turn
from tests.conftest import ROOT
from tests.feed.pod import end, mixed

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
BATCH = 12
SIZES = {"web": 300, "code": 200, "wiki": 90}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset on disk of three sources; one has masks."""
    random, first, sources = np.random.default_rng(0), 1, {}
    for name, count in SIZES.items():
        sources[f"train/{name}"] = distinct_documents(random.integers(1, 90, count), first)
        first = int(sources[f"train/{name}"][-1][-1]) + 1
    masks = {"train/code": [random.integers(0, 2, len(d)) for d in sources["train/code"]]}
    path = tmp_path_factory.mktemp("data") / "d"
    write_dataset(path, sources, masks)
    return path


@pytest.fixture(scope="module")
def rows(path: Path) -> Any:
    return mixed(path, "best_fit")


@pytest.fixture(scope="module")
def reference(rows: Any) -> list[Any]:
    """What the loader for JAX delivers."""
    return list(jaxdata.Loader(rows, batch_size=BATCH, prefetch=0))


def loader(rows: Any, batch_size: Any = BATCH, **settings: Any) -> jaxdata.torch.Loader:
    return jaxdata.torch.Loader(rows, batch_size=batch_size, **settings)


def from_batches(rows: Any, workers: int, **settings: Any) -> DataLoader[Any]:
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH)
    return DataLoader(batches, batch_size=None, num_workers=workers, **settings)


def stateful(dataset: Any, workers: int, **settings: Any) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **settings)


def check(batches: Iterable[Any], reference: Iterable[Any]) -> None:
    """Tensors equal to the arrays, in bits and types."""
    batches = list(batches)
    assert all(isinstance(value, torch.Tensor) for batch in batches for value in batch.values())
    numpy = [{name: value.numpy() for name, value in batch.items()} for batch in batches]
    assert assert_same_batches(numpy, reference) > 0


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


STEP = 7


def jax_state(rows: Any) -> dict[str, Any]:
    one = jaxdata.Loader(rows, batch_size=BATCH, prefetch=0)
    for _ in range(STEP):
        next(one)
    return one.get_state()


def state_by_itself(rows: Any) -> Any:
    one = loader(rows, num_workers=2)
    list(islice(one, STEP))
    return one.state_dict()


def state_of_batches(rows: Any) -> Any:
    return jaxdata.torch.Batches(rows, batch_size=BATCH).get_state(STEP)


def state_of_stateful(workers: int, every: int = 1) -> Callable[[Any], Any]:
    def take(rows: Any) -> Any:
        one = stateful(loader(rows), workers, snapshot_every_n_steps=every)
        list(islice(one, STEP))
        return one.state_dict()

    return take


WAYS = {
    "jax": jax_state,
    "torch": state_by_itself,
    "Batches": state_of_batches,
    "StatefulDataLoader, 0 workers": state_of_stateful(0),
    "StatefulDataLoader, 1 worker": state_of_stateful(1),
    "StatefulDataLoader, 3 workers": state_of_stateful(3),
    "StatefulDataLoader, 2 workers, rare snapshots": state_of_stateful(2, every=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_goes_on_from_the_state_of_each(rows: Any, reference: Any, way: str) -> None:
    state = json.loads(json.dumps(WAYS[way](rows)))
    left = reference[STEP:]
    one = loader(rows)
    one.load_state_dict(state)
    assert one.get_state() == jax_state(rows), "one state for all"
    assert one.state_dict() == {**jax_state(rows), "skips": [], "amendments": []}
    check(one, left)
    for workers in (0, 2):
        again = loader(rows)
        again.load_state_dict(state)
        check(stateful(again, workers), left)
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH)
    batches.set_state(state)
    check(DataLoader(batches, batch_size=None, num_workers=2), left)
    jax = jaxdata.Loader(rows, batch_size=BATCH)
    plain = loader(rows)
    plain.load_state_dict(state)
    jax.set_state(plain.state_dict())
    assert_same_batches(jax, left)


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (1, 4), (3, 1), (3, 4)])
def test_a_stateful_data_loader_restores_itself_at_every_step(
    rows: Any, reference: Any, workers: int, every: int
) -> None:
    one = stateful(loader(rows), workers, snapshot_every_n_steps=every)
    states = [one.state_dict()]
    for _ in one:
        states.append(json.loads(json.dumps(one.state_dict())))
    assert len(states) == len(reference) + 1
    for step in (0, 1, 6, len(reference) - 1):
        again = stateful(loader(rows), workers, snapshot_every_n_steps=every)
        again.load_state_dict(states[step])
        check(again, reference[step:])


def test_a_run_that_changes_all_the_time(rows: Any) -> None:
    """Rows come once, whatever reads them, with other workers, ranks and sizes at every stop."""
    state: Any = None
    seen: list[np.ndarray] = []
    plan = [(1, 2, 12), (2, 1, 8), (3, 0, 24), (1, 3, 20), (2, 2, 12)]
    for number, (world_size, workers, size) in enumerate(plan):
        last = number == len(plan) - 1
        parts, states = [], []
        for rank in range(world_size):
            one = loader(rows, size, rank=rank, world_size=world_size)
            if state is not None:
                one.load_state_dict(state)
            found = stateful(one, workers)
            parts.append(list(islice(found, None if last else 5)))
            states.append(found.state_dict())
        seen += [
            torch.cat([p["inputs"] for p in step]).numpy() for step in zip(*parts, strict=True)
        ]
        state = states[-1]
    whole = np.concatenate(seen)[: len(rows)]
    assert np.array_equal(whole, np.stack([rows[k]["inputs"] for k in range(len(rows))]))


def test_a_stateful_data_loader_of_batches_restores_itself(rows: Any, reference: Any) -> None:
    one = stateful(jaxdata.torch.Batches(rows, batch_size=BATCH), 2)
    list(islice(one, STEP))
    again = stateful(jaxdata.torch.Batches(rows, batch_size=BATCH), 2)
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
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
        n: jaxdata.pack(opened.source("train", n), seq_len=48, order=1, block=64) for n in SIZES
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


def test_tensors_are_the_memory_of_arrays_and_never_change(rows: Any, reference: Any) -> None:
    one = loader(rows)
    inner = one._delivery.send
    arrays = []
    one._delivery.send = lambda batch: arrays.append(batch["inputs"].ctypes.data) or inner(batch)
    held = list(one)
    assert [batch["inputs"].data_ptr() for batch in held] == arrays, "no copy"
    gc.collect()
    check(held, reference)
    parts = [batch["targets"][3:5] for batch in loader(rows, num_workers=2)]
    gc.collect()
    assert all(
        np.array_equal(part.numpy(), batch["targets"][3:5])
        for part, batch in zip(parts, reference, strict=True)
    )


def test_memory_is_used_again_when_no_tensor_refers_to_it(rows: Any) -> None:
    places = {batch["inputs"].data_ptr() for batch in loader(rows, prefetch=0)}
    assert len(places) < 8 < len(loader(rows))


def test_int64_and_layouts_and_numbers(rows: Any, reference: Any) -> None:
    batch = next(loader(rows, long=True))
    assert batch["targets"].dtype == torch.int64
    assert batch["loss_mask"].dtype == torch.bool
    assert np.array_equal(batch["targets"].numpy(), reference[0]["targets"])
    torch.nn.functional.cross_entropy(torch.zeros(32, 65_536), batch["targets"][0])
    native = loader(rows, layout=lambda b: {**b, **varlen(b["segment_ids"])}, num_workers=1)
    first = next(native)
    native.close()
    assert type(first["max_seqlen"]) is int
    assert first["cu_seqlens"].dtype == torch.int32
    names = set(next(iter(stateful(loader(rows, layout="hf"), 1))))
    assert names == {"input_ids", "labels", "shift_labels", "position_ids", "use_cache"}


def test_a_device_of_ones_own(rows: Any, reference: Any) -> None:
    one = loader(rows, device="cpu")
    check(one, reference)
    with pytest.raises(InputError, match=r"device='cpu' in a worker of a DataLoader: leave it out"):
        next(iter(stateful(loader(rows, device="cpu"), 1)))
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device='cuda:0': torch finds no CUDA device here"):
            loader(rows, device="cuda:0")


def test_a_copy_is_done_before_memory_is_used_again(
    rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is not awaited reads the next batch, on a Mac's GPU for one: pytorch#189690."""
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


def test_jax_leaves_the_device_to_torch(path: Path) -> None:
    """JAX would take most of a GPU's memory as soon as it is asked for its devices."""
    code = f"""
import jaxdata
import jaxdata.torch
rows = jaxdata.pack(jaxdata.open_dataset({str(path)!r}).source("train", "web"), seq_len=32)
for make in (jaxdata.Loader, jaxdata.torch.Loader):
    one = make(rows, batch_size=4, num_workers=1, layout="hf")
    next(one)
    one.set_state(one.get_state())
    print(next(one)["labels"].shape[0], one.report() is not None)
    one.close()
import jax
jax.devices()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["4", "True"] * 2, done.stderr
    assert "'none'" in done.stderr, "asked for devices JAX would have failed"


def test_remote_data_is_refused_in_a_forked_worker() -> None:
    dataset = write_dataset("memory://torch", {"train/a": distinct_documents([30, 50, 20] * 20)})
    rows = jaxdata.pack(dataset.source("train", "a"), seq_len=32)
    next(loader(rows, 2))
    for dataset in (loader(rows, 2), jaxdata.torch.Batches(rows, batch_size=2)):
        with pytest.raises(DatasetError, match=r"forked process: start workers with 'spawn'"):
            next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))


def test_a_running_loader_may_be_forked(rows: Any, reference: Any) -> None:
    """Its thread and its worker processes stay with the parent, who goes on."""
    one = loader(rows, num_workers=2)
    check([next(one)], reference[:1])
    check(stateful(one, 2), reference[1:])
    check(one, reference[1:])
    one.close()


def test_a_config_is_loaded(path: Path) -> None:
    config = {
        "dataset": str(path),
        "pack": {"seq_len": 32},
        "curriculum": {"mix": {"web": 1, "code": 1}},
        "loader": {"batch_size": 6, "num_workers": 1},
        "on_exhaustion": "renormalize",
    }
    expected = list(jaxdata.load(config))
    check(jaxdata.torch.load(config), expected)
    second = jaxdata.torch.load(config, rank=1, world_size=2, **{"loader.layout": "megatron"})
    assert np.array_equal(next(second)["tokens"].numpy(), expected[0]["inputs"][3:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 1}, "rank=1, world_size=None: give both"),
        ({"rank": 0, "world_size": 5}, "batch_size=12 cannot be divided among 5 shards"),
        ({"sharding": object()}, "give rank= and world_size= for tensors"),
        ({"expand": "device"}, "expand='device' makes arrays on devices"),
    ],
)
def test_settings_that_make_no_sense(rows: Any, settings: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        loader(rows, **settings)
    assert message in str(caught.value)


def test_the_states_of_others_are_refused(rows: Any) -> None:
    one = loader(rows)
    with pytest.raises(StateMismatch, match="has none of a jaxdata"):
        one.load_state_dict(stateful(list(range(10)), 1).state_dict())
    with pytest.raises(StateMismatch, match="this is not a loader state"):
        one.load_state_dict({"model": 3})


def test_ranks_are_those_of_torchrun(
    rows: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    check([next(loader(rows))], [{name: a[4:8] for name, a in reference[0].items()}])


def test_without_torch_it_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; import jaxdata; jaxdata.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "torch is not installed; install it with: pip install 'jaxdata[torch]'"
    assert expected in done.stderr


def run_processes(path: Path, output: Path, state: Any, steps: int | None) -> Any:
    """Two processes of `torch.distributed`; each writes its part and its state."""
    output.mkdir()
    job = {"path": str(path), "output": str(output), "state": state, "steps": steps}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.ranks", json.dumps(job), str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        end(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    parts = [np.load(output / f"{rank}.npz") for rank in range(2)]
    states = [json.loads((output / f"{rank}.json").read_text()) for rank in range(2)]
    assert states[0] == states[1]
    return {key: np.concatenate([part[key] for part in parts], axis=1) for key in parts[0]}, states


@pytest.mark.slow
def test_two_processes_of_torch_distributed(
    path: Path, rows: Any, reference: Any, tmp_path: Path
) -> None:
    found, states = run_processes(path, tmp_path / "first", None, 6)
    jax = jaxdata.Loader(rows, batch_size=BATCH)
    jax.set_state(states[0])
    assert_same_batches([next(jax) for _ in range(4)], reference[6:10])
    second, _ = run_processes(path, tmp_path / "second", jax.get_state(), None)
    for key, array in found.items():
        whole = np.concatenate([array, np.stack([b[key] for b in reference[6:10]]), second[key]])
        assert np.array_equal(whole, np.stack([batch[key] for batch in reference]))
