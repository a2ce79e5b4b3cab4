"""The rows of a dataset of three sources, and loaders of torch tensors of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata
import jaxdata.torch
from jaxdata.testing import assert_same_batches
from tests.builders import dataset
from tests.feed.pod import mixed

BATCH = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset on disk of three sources; one has masks."""
    random, counts = np.random.default_rng(0), {"web": 300, "code": 200, "wiki": 90}
    sources = {name: random.integers(1, 90, count).tolist() for name, count in counts.items()}
    masks = {"code": [random.integers(0, 2, length) for length in sources["code"]]}
    return dataset(tmp_path_factory.mktemp("data") / "d", sources, masks=masks)


@pytest.fixture(scope="module")
def rows(path: Path) -> Any:
    return mixed(path, "best_fit")


@pytest.fixture(scope="module")
def reference(rows: Any) -> list[Any]:
    """What the loader for JAX delivers."""
    return list(jaxdata.Loader(rows, batch_size=BATCH, prefetch=0))


def loader(rows: Any, batch_size: Any = BATCH, **settings: Any) -> jaxdata.torch.Loader:
    return jaxdata.torch.Loader(rows, batch_size=batch_size, **settings)


def stateful(dataset: Any, workers: int, **settings: Any) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **settings)


def check(batches: Iterable[Any], reference: Iterable[Any]) -> None:
    """Tensors equal to the arrays, in bits and types."""
    batches = list(batches)
    assert all(isinstance(value, torch.Tensor) for batch in batches for value in batch.values())
    numpy = [{name: value.numpy() for name, value in batch.items()} for batch in batches]
    assert assert_same_batches(numpy, reference) > 0
