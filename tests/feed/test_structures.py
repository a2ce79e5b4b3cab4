"""Layouts that return tuples, arrays, or anything nested: everywhere that a batch passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import jaxdata
import jaxdata.torch
from jaxdata.errors import InputError
from jaxdata.feed.trees import leaves, map_leaves
from jaxdata.testing import assert_same_batches, distinct_documents

LENGTHS = np.random.default_rng(0).integers(1, 40, 60)
ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents(LENGTHS)), seq_len=32)


class Example(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Record:
    x: Any
    about: Any = None


def nested(batch: Any) -> Any:
    flags = {"causal": True, "name": "packed", "none": None, "scale": 0.5}
    inside = [Example(batch["inputs"], (batch["targets"],)), flags]
    return inside, Record(batch["loss_mask"], {"longest": np.array(7)})


LAYOUTS = {
    "tuple": lambda batch: (batch["inputs"], batch["targets"]),
    "array": lambda batch: batch["inputs"],
    "nested": nested,
}


def loaded(face: Any = jaxdata.Loader, **settings: Any) -> list[Any]:
    return list(face(ROWS, **{"batch_size": 4, **settings}))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"prefetch": 0}], ids=str)
def test_every_way_of_delivery_keeps_the_structure(name: str, settings: dict[str, Any]) -> None:
    layout = LAYOUTS[name]
    made = loaded(layout=layout, **settings)
    want = [layout(batch) for batch in loaded(prefetch=0)]
    assert [shape_of(batch) for batch in made] == [shape_of(batch) for batch in want]
    assert_same_batches(made, want)
    tensors = loaded(jaxdata.torch.Loader, layout=layout, **settings)
    assert [shape_of(batch) for batch in tensors] == [shape_of(batch) for batch in want]
    assert all(isinstance(leaf, torch.Tensor) for leaf in arrays_in(tensors[0]))
    assert_same_batches(map(arrays_in, tensors), map(arrays_in, want))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = loaded(layout=layout, sharding=device, **settings)
    assert all(isinstance(leaf, jax.Array) for leaf in arrays_in(placed[0]))
    assert [shape_of(batch) for batch in placed] == [shape_of(batch) for batch in want]


def shape_of(batch: Any) -> str:
    """The types of a structure, and the constants in it."""

    def shown(_: str, leaf: Any) -> Any:
        single = isinstance(leaf, np.ndarray | np.generic) and not leaf.ndim
        return leaf.item() if single else "array" if np.ndim(leaf) else leaf

    return repr(map_leaves(shown, batch))


def arrays_in(batch: Any) -> list[Any]:
    return [leaf for leaf in leaves(batch).values() if np.ndim(leaf)]


def test_batches_of_tuples_in_workers_are_never_copied_nor_changed() -> None:
    held = loaded(layout=LAYOUTS["tuple"], num_workers=1)
    again = loaded(layout=LAYOUTS["tuple"])
    assert_same_batches(held, again)


def test_a_structure_that_changes_on_the_way_is_followed() -> None:
    def odd(batch: Any) -> Any:
        return {"longest": int(batch["segment_ids"].max()), "inputs": batch["inputs"]}

    made, want = (loaded(layout=odd, num_workers=workers) for workers in (1, 0))
    assert len({batch["longest"] for batch in want}) > 1
    assert made[0]["longest"] == want[0]["longest"]
    assert [batch["longest"] for batch in made] == [batch["longest"] for batch in want]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_leaf_is_refused_in_words(workers: int) -> None:
    def bad(batch: Any) -> Any:
        return {"inputs": batch["inputs"], "names": {1, 2}}

    with pytest.raises(InputError, match=r"the layout put a set into a batch: expected arrays and"):
        loaded(jaxdata.torch.Loader, layout=bad, num_workers=workers)


def test_states_and_steps_do_not_know_of_structures() -> None:
    one, other = (jaxdata.Loader(ROWS, batch_size=4, layout=each) for each in (nested, "jaxdata"))
    next(one), next(other)
    assert one.get_state() == other.get_state()
