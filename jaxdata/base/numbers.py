"""Numbers of numpy, jax and torch as Python's own, in public functions.

What a caller passes goes into seeds, JSON states and exact arithmetic, where `np.int64(1)` would be
another thing than `1`.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.wording import nearest

F = TypeVar("F", bound=Callable[..., Any])

_BITS = 64
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

    What a function's signature says to be an `int` has to be one: no float, not even a whole one,
    no flag and no text. A class checks its own arguments.

    Raises:
        InputError: by the function, where an argument is no whole number; its name is in there.

    >>> takes_numpy(repr)(np.int64(3))
    '3'
    """
    if isinstance(door, type):
        made: Any = door
        made.__init__ = _opened(made.__init__, lambda *_: None)
        return door
    return _opened(door, _check_of(door))


def takes_numpy_beside(data: str) -> Callable[[F], F]:
    """The same for a function whose first argument, `data`, holds texts: it stays as it is."""
    return lambda door: _opened(door, _check_of(door), data)


_Check = Callable[[tuple[Any, ...], dict[str, Any]], None]


def _opened(door: F, check: _Check, data: str | None = None) -> F:
    @functools.wraps(door)
    def called(*given: Any, **named: Any) -> Any:
        texts = {data: named.pop(data)} if data in named else {}
        first = 0 if data is None else 1
        values = (*given[:first], *(_taken("an argument", each) for each in given[first:]))
        names = {name: _taken(name, value) for name, value in named.items()}
        check(values, names)
        return door(*values, **texts, **names)

    return called  # type: ignore[return-value]


def check_width(value: Any) -> None:
    """Refuse whole numbers of more than 64 bits, in containers too."""
    if type(value) is int and value.bit_length() > _BITS:
        raise InputError(f"a whole number of {value.bit_length():,} bits: expected at most {_BITS}")
    if type(value) in (list, tuple):
        for each in value:
            check_width(each)
    elif type(value) in _MAPPINGS:
        check_width([*value.values()])


def _taken(name: str, value: Any) -> Any:
    try:
        own = plain(value)
        check_width(own)
        return own
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except RecursionError:
        raise InputError(f"{name}: lists or mappings too deep in each other") from None


def _check_of(door: Callable[..., Any]) -> _Check:
    """Refuses what is no number, or no whole one, where the signature says it is."""
    try:
        parameters = inspect.signature(door).parameters.values()
    except ValueError:  # one written in C
        return lambda *_: None
    order = [each.name for each in parameters]
    hints = {each.name: str(each.annotation).split(" | ") for each in parameters}
    hints = {name: hint for name, hint in hints.items() if _NUMBERS.issuperset(hint)}
    closed = all(each.kind is not each.VAR_KEYWORD for each in parameters)

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> None:
        for name in named if closed else ():
            if name not in order:
                raise TypeError(
                    f"{door.__qualname__}() got an unexpected keyword argument {name!r}"
                    f"{nearest(name, order)}"
                )
        for name, value in (*zip(order, given, strict=False), *named.items()):
            if name in hints and not _fits(value, hints[name]):
                what = _SAID.get(hints[name][0], "a whole number")
                also = ", or None" if "None" in hints[name] else ""
                raise InputError(f"{name}={value!r}: expected {what}{also}")

    return check


_PAIR = "tuple[int, int]"
_SAID = {_PAIR: "two whole numbers", "float": "a number"}
_NUMBERS = {"int", "float", "bool", "None", _PAIR}


def _fits(value: Any, hint: list[str]) -> bool:
    """Tell whether a value is what a hint of whole numbers says."""
    if value is None:
        return "None" in hint
    if hint[0] == _PAIR:
        pair = isinstance(value, list | tuple) and len(value) == 2
        return pair and all(is_whole(each) for each in value)
    if "float" in hint:
        return is_number(value)
    return is_whole(value) or "bool" in hint


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, which a flag is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, which a flag is not.

    >>> [is_whole(value) for value in (3, 3.0, True, "3")]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool)
