"""Columns of one value a token, beside the ids of a corpus that is tokenised already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.inputs.parsing import BadRecord, field_of
from jaxdata.converter.tasks.base import Record
from jaxdata.format.side_rules import as_type


class PerToken:
    """The side arrays of a task whose tokens are the ids of a list, one for one.

    Args:
        kept: "name:dtype" of each, or "name:dtype:fill".

    >>> kept = PerToken(["weight:float32"])
    >>> kept.read({"weight": [0.5, 2]}, 2, "input_ids")
    {'weight': array([0.5, 2. ], dtype=float32)}
    """

    def __init__(self, kept: Sequence[str]) -> None:
        parts = [one.split(":") for one in kept]
        self.dtypes = {name: dtype for name, dtype, *_ in parts}
        self.fills = {name: _number(*fill) for name, _, *fill in parts}
        """the value for tokens that are added"""

    def read(self, record: Record, ids: int, ids_key: str) -> dict[str, NDArray[Any]]:
        """Take the values for so many ids out of a record; raises BadRecord."""
        found = {}
        for name, dtype in self.dtypes.items():
            values = _numbers(field_of(record, name), name)
            if len(values) != ids:
                raise BadRecord(f"{name!r} is not as long as {ids_key!r}")
            fitting = as_type(values, np.dtype(dtype))
            if fitting is None:
                raise BadRecord(f"{name!r} holds a number that {dtype} does not hold")
            found[name] = fitting
        return found


def _number(fill: str = "0") -> float:
    return int(fill) if fill.lstrip("-").isdecimal() else float(fill)


def _numbers(given: Any, name: str) -> NDArray[Any]:
    if given is None:
        raise BadRecord(f"{name!r} is null")
    if isinstance(given, list | tuple):
        if not {*map(type, given)} <= {int, float}:
            raise BadRecord(f"{name!r} holds what is not a number")
        try:
            given = np.array(given) if given else np.empty(0)
        except OverflowError:
            given = np.empty(0, object)
    if not isinstance(given, np.ndarray):
        raise BadRecord(f"{name!r} is not a list")
    if given.dtype.kind == "O":
        raise BadRecord(f"{name!r} holds a number of more than 64 bits")
    if given.dtype.kind not in "iuf":
        raise BadRecord(f"{name!r} holds what is not a number")
    return given
