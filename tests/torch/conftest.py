"""The rows of a dataset of three sources, and loaders of torch tensors of them."""

from __future__ import annotations

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
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset
from tests.feed.pod import mixed

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
