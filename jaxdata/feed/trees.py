"""Batches of any structure: dicts, lists, tuples and dataclasses with arrays in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.dataset.contract import Dataset


def check_rows(rows: Any) -> None:
    """Refuse what is not rows: a dataset, a source, a folder."""
    if isinstance(rows, str | PathLike | Dataset) or hasattr(rows, "lengths"):
        raise InputError(
            f"a loader is given rows, not a {type(rows).__name__}: pack a source first, "
            "jaxdata.pack(dataset.source(split, name), seq_len=…), or mix several"
        )


def refuse_copy(iterator: Any) -> NoReturn:
    """Refuse to copy or pickle an iterator; its `__reduce__`."""
    raise InputError(
        f"a {type(iterator).__name__} is not copied or pickled, as it has threads and a place in a "
        "run: make another one in the same way, and call its set_state(first.get_state())"
    )


def is_on_host(expand: str, on_devices: bool, packed_rows: bool) -> bool:
    """Whether `expand=` has batches assembled on the host, not on devices."""
    if expand not in ("host", "device"):
        raise InputError(f"expand={expand!r}: expected 'host' or 'device'")
    if expand == "device" and not on_devices:
        raise InputError("expand='device' makes arrays on devices: give sharding= with it")
    if expand == "device" and not packed_rows:
        raise InputError(
            "expand='device' takes rows as pack and mix return them, but these were transformed: "
            "apply the function to the batches of the loader instead"
        )
    return expand == "host"


_MOST_SLOTS = 2**31
"""of a batch in one process: some 40 GB of arrays"""


def check_slots(rows: int, seq_len: int) -> None:
    """Refuse batches of which the rows of this process cannot lie in its memory."""
    if rows * seq_len > _MOST_SLOTS:
        raise InputError(
            f"{rows:,} rows of a batch in this process, of {seq_len:,} slots each: expected at "
            f"most {_MOST_SLOTS:,} slots; make batch_size or seq_len smaller, or use more processes"
        )


_PLAIN = (str, bytes, bool, int, float, type(None))


def map_leaves(function: Callable[[str, Any], Any], batch: Any, name: str = "") -> Any:
    """The same structure, with `function(name, leaf)` in place of each leaf.

    The name of a leaf is its path, `labels` or `0.inputs`; that of a batch of one leaf is empty.

    >>> map_leaves(lambda name, leaf: f"{name}={leaf}", {"x": (1, [2])})
    {'x': ('x.0=1', ['x.1.0=2'])}
    """
    inside = _inside(batch)
    if inside is None:
        return function(name, batch)
    mapped = {
        key: map_leaves(function, value, f"{name}.{key}" if name else str(key))
        for key, value in inside.items()
    }
    return _like(batch, mapped)


def leaves(batch: Any) -> dict[str, Any]:
    """The leaves of a batch, by name.

    >>> leaves(([5, 6], {"mask": True}))
    {'0.0': 5, '0.1': 6, '1.mask': True}
    """
    found: dict[str, Any] = {}
    map_leaves(found.__setitem__, batch)
    return found


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or a number of numpy; others are constants of a batch.

    Raises:
        InputError: it is neither.
    """
    if isinstance(leaf, _PLAIN):
        return isinstance(leaf, np.generic)  # numpy's float64 is a float
    if not hasattr(leaf, "__array__"):
        raise InputError(
            f"the layout put a {type(leaf).__name__} into a batch: expected arrays and plain "
            "constants, in dicts, lists, tuples or dataclasses"
        )
    return True


def _inside(batch: Any) -> dict[Any, Any] | None:
    """What a container holds, by key; None for a leaf."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, list | tuple):
        return dict(enumerate(batch))
    if is_dataclass(batch) and not isinstance(batch, type):
        return {each.name: getattr(batch, each.name) for each in fields(batch)}
    return None


def _like(batch: Any, inside: dict[Any, Any]) -> Any:
    """A container like `batch`, of other things."""
    if isinstance(batch, Mapping):
        return inside
    if isinstance(batch, list):
        return list(inside.values())
    if isinstance(batch, tuple):
        named = hasattr(batch, "_fields")
        return type(batch)(*inside.values()) if named else tuple(inside.values())
    made = copy.copy(batch)
    for name, value in inside.items():
        object.__setattr__(made, name, value)  # frozen ones too
    return made
