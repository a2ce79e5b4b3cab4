"""Batches through shared memory: never changed while held, given back when let go of."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.errors import InputError
from jaxdata.testing import assert_same_batches, distinct_documents
from tests.documents.few_descriptors import with_few_descriptors
from tests.feed.test_workers import children

DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 2_000))
)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=64)


@pytest.fixture
def loader() -> Iterator[jaxdata.Loader]:
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=2)
    yield loader
    loader.close()


def buffers() -> int:
    """Memory files that worker processes have made."""
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in children()]
    return sum(text.count("jaxdata-batch") for text in maps)


def test_held_batches_do_not_change(loader: jaxdata.Loader) -> None:
    held = list(loader)
    assert len(held) > 100
    assert_same_batches(held, jaxdata.Loader(ROWS, batch_size=8))


def test_more_batches_are_held_than_files_may_be_open() -> None:
    code = """
import json, numpy as np
import jaxdata
documents = jaxdata.ArrayDocuments([np.arange(k, k + 15) for k in range(400)])
rows = jaxdata.pack(documents, seq_len=14)
held = list(jaxdata.Loader(rows, batch_size=1, num_workers=2))
same = [np.array_equal(batch["inputs"][0], rows[k]["inputs"]) for k, batch in enumerate(held)]
print(json.dumps([len(same), all(same)]))
"""
    assert with_few_descriptors(code) == [400, True]


def test_one_array_holds_its_batch(loader: jaxdata.Loader) -> None:
    inputs = [next(loader)["inputs"][3:5] for _ in range(60)]
    fresh = [next(jaxdata.Loader(ROWS, batch_size=8))["inputs"][3:5]]
    assert np.array_equal(inputs[0], fresh[0])
    expected = jaxdata.Loader(ROWS, batch_size=8)
    assert all(np.array_equal(part, next(expected)["inputs"][3:5]) for part in inputs)


def test_what_jax_refers_to_is_held() -> None:
    device = jax.devices()[0]
    loader = jaxdata.Loader(
        ROWS, batch_size=8, num_workers=2, sharding=SingleDeviceSharding(device)
    )
    held = [batch["inputs"] for batch in loader]
    gc.collect()
    expected = [batch["inputs"] for batch in jaxdata.Loader(ROWS, batch_size=8)]
    assert all(np.array_equal(a, b) for a, b in zip(held, expected, strict=True))


def test_buffers_are_used_again(loader: jaxdata.Loader) -> None:
    for _ in range(20):
        next(loader)
    early = buffers()
    for _ in range(100):
        next(loader)
    assert 2 <= buffers() <= max(early, 14)


@pytest.mark.parametrize("pause", [0, 1])
def test_a_worker_far_ahead(pause: float) -> None:
    """More messages are unread than fit into a socket: nobody waits for ever."""
    loader = jaxdata.Loader(ROWS, batch_size=1, num_workers=1, prefetch=5_000)
    first = next(loader)
    time.sleep(pause)
    assert assert_same_batches([first, *loader], jaxdata.Loader(ROWS, batch_size=1)) > 1_000
    loader.close()


def test_batches_may_be_written_to(loader: jaxdata.Loader) -> None:
    first = next(loader)
    first["inputs"][:] = -1
    kept = first["inputs"].copy()
    for _ in range(30):
        next(loader)
    assert np.array_equal(first["inputs"], kept)


def test_python_objects_are_refused_by_name() -> None:
    rows = ROWS.map(lambda row: {**row, "words": np.array(["a", None], object)})
    with pytest.raises(InputError, match=r"'words' holds Python objects.* num_workers=0"):
        next(jaxdata.Loader(rows, batch_size=2, num_workers=1))


def test_arrays_of_ever_other_shapes() -> None:
    def ragged(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kinds = int(batch["inputs"][0, 0]) % 200  # more layouts than are remembered, some again
        return {"inputs": batch["inputs"], "more": np.full((kinds, 3), kinds, np.int16)}

    settings = {"batch_size": 2, "layout": ragged}
    expected = list(jaxdata.Loader(ROWS, **settings))
    shapes = [batch["more"].shape for batch in expected]
    assert len(shapes) > len(set(shapes)) > 150
    made = jaxdata.Loader(ROWS, num_workers=1, **settings)
    assert_same_batches(made, expected)
    made.close()


def test_no_arrays_at_all() -> None:
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=1, layout=lambda _: {})
    assert list(loader) == [{}] * len(loader)
