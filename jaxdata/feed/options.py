"""What a loader was asked for, checked."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from jaxdata.errors import InputError
from jaxdata.feed.layouts import Layout, layout, native
from jaxdata.rows.assembly import assemble
from jaxdata.rows.compact import compact
from jaxdata.rows.extras import assemble_with, compact_with

__all__ = ["check_layout", "is_on_host", "lay_out", "require_whole"]


def is_on_host(expand: str, on_devices: bool, plain_rows: bool) -> bool:
    """Whether batches are laid out here, by `expand=`, and not on devices."""
    if expand not in ("host", "device"):
        raise InputError(f"expand={expand!r}: expected 'host' or 'device'")
    if expand == "device" and not on_devices:
        raise InputError("expand='device' makes arrays on devices: give sharding= with it")
    if expand == "device" and not plain_rows:
        raise InputError(
            "expand='device' takes rows as pack and mix return them; these were transformed: "
            "apply the function to the batches that the loader gives"
        )
    return expand == "host"


def lay_out(on_host: bool, extras: tuple[str, ...]) -> Any:
    """The function that makes batches of rows of a table."""
    if extras:
        return partial(assemble_with if on_host else compact_with, extras)
    return assemble if on_host else compact


def check_layout(given: str | Layout, on_host: bool) -> Layout:
    """The layout of a name or a function, which takes batches laid out here."""
    found = layout(given)
    if not on_host and found is not native:
        raise InputError(
            f"layout={given!r} is made on the host, expand='device' makes the arrays of layout "
            "'jaxdata' on devices: leave one of them out, or rename arrays in the jitted step"
        )
    return found


def require_whole(**given: Any) -> None:
    """Refuse what is no whole number of at least 0, by name."""
    for name, value in given.items():
        if not isinstance(value, int | np.integer) or value < 0:
            raise InputError(f"{name}={value!r}: expected a whole number of at least 0")
