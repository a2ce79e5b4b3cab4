"""Batches of any structure: dicts, lists and tuples with arrays in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError

_CONTAINERS = (dict, list, tuple, Mapping)
_PLAIN = (str, bytes, bool, int, float, type(None))


def map_leaves(function: Callable[[str, Any], Any], batch: Any, name: str = "") -> Any:
    """The same structure, with `function(name, leaf)` in place of each leaf.

    The name of a leaf is its path, `labels` or `0.inputs`; that of a batch of one leaf is empty.

    >>> map_leaves(lambda name, leaf: f"{name}={leaf}", {"x": (1, [2])})
    {'x': ('x.0=1', ['x.1.0=2'])}
    """
    if not isinstance(batch, _CONTAINERS):
        return function(name, batch)
    inside = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    mapped = {
        key: map_leaves(function, value, f"{name}.{key}" if name else str(key))
        for key, value in inside
    }
    if isinstance(batch, Mapping):
        return mapped
    if hasattr(batch, "_fields"):
        return type(batch)(*mapped.values())
    return list(mapped.values()) if isinstance(batch, list) else tuple(mapped.values())


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
            "constants, in dicts, lists or tuples"
        )
    return True
