"""What cannot be placed on devices is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import DevicePlacement, attention_mask, check_wide
from jaxdata.feed.layouts import leaves


def test_arrays_of_64_bits_are_refused_where_jax_has_32() -> None:
    check_wide({"document": np.int32, "weight": np.float32, "kind": np.uint8})
    for name, reason in (
        ("document", "since a source has more than 2^31 documents"),
        ("weight", "as it is stored"),
    ):
        with pytest.raises(InputError) as caught:
            check_wide({"kind": np.int8, name: np.int64})
        assert str(caught.value) == (
            f"'{name}' needs 64 bits, {reason}, but JAX is set to 32: set JAX_ENABLE_X64=1, or "
            "remove it from extras"
        )


def test_a_loader_refuses_them_before_its_first_batch() -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 0]] * 4, side={"weight": [[0.5] * 3] * 4})
    rows = jaxdata.pack(docs, seq_len=4)
    sharding = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(InputError, match="'weight' needs 64 bits"):
        jaxdata.Loader(rows, batch_size=2, sharding=sharding, extras=["weight"])


def test_a_process_without_a_device_of_the_sharding_is_refused() -> None:
    elsewhere: Any = SimpleNamespace(addressable_devices_indices_map=lambda shape: {"far": None})
    with pytest.raises(InputError, match="none of this process's devices is in namespace"):
        DevicePlacement(elsewhere, 8, 32)


def test_masks_on_devices_are_those_of_numpy() -> None:
    ids = np.array([[1, 1, 2, 2, 0], [1, 2, 2, 2, 2]], np.int32)
    found = attention_mask(jax.numpy.asarray(ids))
    expected = [
        [[a == b and j <= i for j, b in enumerate(row)] for i, a in enumerate(row)] for row in ids
    ]
    assert found.tolist() == [[each] for each in expected]


def test_leaves_are_named_by_their_paths() -> None:
    assert leaves({"x": (1, [2]), "y": 3}) == {"x.0": 1, "x.1.0": 2, "y": 3}
    assert leaves(([5], {"z": 6})) == {"0.0": 5, "1.z": 6}
    assert leaves(7) == {"": 7}
