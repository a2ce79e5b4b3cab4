"""What side arrays may be called, and what they may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from jaxdata.errors import InputError

TARGET = "target_"
"""Before the name of a side array: its values of the targets, not of the inputs."""

SideName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
SideType = Literal[
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
"""The type of a value."""

_TAKEN = {
    "tokens", "loss_mask", "inputs", "targets", "segment_ids", "positions", "source", "document",
    "mask", "slots", "context", "ended", "text", "input_ids", "labels", "shift_labels", "use_cache",
    "position_ids", "attention_mask", "completion_mask", "cu_seqlens", "max_seqlen",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "inputs_position",
    "targets_position", "inputs_segmentation", "targets_segmentation",
}  # fmt: skip
"""Names of other arrays of a batch, in any layout."""


def check_side(name: str, dtype: np.dtype[Any] | str = "int8") -> None:
    """Raise InputError unless a side array can have this name and type.

    >>> check_side("weight", "float32")
    """
    if not name.isascii() or not name.isidentifier() or len(name) > 64:
        raise InputError(
            f"side array {name!r}: expected a name of up to 64 letters, digits and '_', beginning "
            "with no digit"
        )
    if name in _TAKEN or name.startswith((TARGET, "chosen_", "rejected_")):
        raise InputError(
            f"side array {name!r}: batches have another array of that name; give it another one"
        )
    if np.dtype(dtype).name not in get_args(SideType):
        raise InputError(
            f"side array {name!r} is of {dtype}; expected whole numbers or floats of 8 to 64 bits: "
            f"{', '.join(get_args(SideType))}"
        )


def as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Numbers in another type, floats rounded; None if it does not hold one of them.

    >>> as_type(np.array([1, 200]), np.dtype(np.uint8)), as_type(np.array([300]), np.dtype("u1"))
    (array([  1, 200], dtype=uint8), None)
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        if dtype.kind == "f":
            fits = np.isfinite(cast) | ~np.isfinite(values)
        else:
            fits = (cast == values) & ((cast < 0) == (values < 0))  # large ones wrap
    return cast if fits.all() else None
