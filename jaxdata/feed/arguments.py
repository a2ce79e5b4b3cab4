"""Arguments of loaders, refused in words where they cannot be meant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from os import PathLike
from typing import Any, NoReturn, TypeVar

import numpy as np

from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def of_rows(made: F) -> F:
    """An `__init__` that looks at its rows first: what is none is said before what is missing."""

    @functools.wraps(made)
    def checked(self: Any, rows: Any, *given: Any, **named: Any) -> None:
        check_rows(rows)
        made(self, rows, *given, **named)

    return checked  # type: ignore[return-value]


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


MOST = {"num_workers": 1024, "prefetch": 2**16}


_MOST_SLOTS = 2**31
"""of a batch in one process: some 40 GB of arrays"""


def check_slots(rows: int, seq_len: int) -> None:
    """Refuse batches of which the rows of this process cannot lie in its memory."""
    if rows * seq_len > _MOST_SLOTS:
        raise InputError(
            f"{rows:,} rows of a batch in this process, of {seq_len:,} slots each: expected at "
            f"most {_MOST_SLOTS:,} slots; make batch_size or seq_len smaller, or use more processes"
        )


def check_counts(**given: Any) -> None:
    """Refuse all but whole numbers from 0 to the most of that name."""
    for name, value in given.items():
        if not isinstance(value, int | np.integer) or value < 0:
            raise InputError(f"{name}={value!r}: expected a whole number of at least 0")
        if value > MOST[name]:
            raise InputError(f"{name}={value}: expected at most {MOST[name]:,}")
