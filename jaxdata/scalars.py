"""Numbers of numpy, jax and torch as Python's own, at the doors of the package.

What a caller passes goes into seeds, JSON states and exact arithmetic, where `np.int64(1)` would be
another thing than `1`.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter, MappingProxyType)


def plain(value: Any) -> Any:
    """A value with Python's own numbers, flags and texts for those of numpy, in containers too.

    A float is the decimal that it is written as, whatever its precision.

    >>> plain({"rows": np.int64(3), "mix": [np.float32(0.1), np.True_]})
    {'rows': 3, 'mix': [0.1, True]}
    """
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, _MAPPINGS) and type(value) in _MAPPINGS:
        return {plain(key): plain(inner) for key, inner in value.items()}
    if getattr(value, "shape", None) != ():
        return value
    scalar: Any = np.asarray(value)[()]
    return _own(scalar) if isinstance(scalar, np.generic) else value


def _own(scalar: np.generic) -> Any:
    found = scalar.item()
    return float(str(scalar)) if isinstance(found, float | np.floating) else found


def takes_numpy(door: F) -> F:
    """Let a function, or what makes the objects of a class, take numpy's numbers as Python's.

    >>> takes_numpy(repr)(np.int64(3))
    '3'
    """
    if isinstance(door, type):
        made: Any = door
        made.__init__ = takes_numpy(made.__init__)
        return door

    @functools.wraps(door)
    def called(*given: Any, **named: Any) -> Any:
        return door(*map(plain, given), **plain(named))

    return called  # type: ignore[return-value]


def takes_numpy_beside(data: str) -> Callable[[F], F]:
    """The same for a function whose first argument, `data`, holds texts: it stays as it is."""

    def opened(door: F) -> F:
        @functools.wraps(door)
        def called(*given: Any, **named: Any) -> Any:
            texts = {data: named.pop(data)} if data in named else {}
            return door(*given[:1], *map(plain, given[1:]), **texts, **plain(named))

        return called  # type: ignore[return-value]

    return opened
