"""The columns that `--keep-per-token` names: of which types they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdata.converter.inputs.file_types import is_table
from jaxdata.converter.inputs.formats.tables import list_type
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.options import split_keys
from jaxdata.errors import InputError
from jaxdata.format.side_rules import as_type, check_side


def with_types(names: Any, files: Sequence[InputFile], transform: object = None) -> tuple[str, ...]:
    """Complete names to "name:dtype", or "name:dtype:fill" where the fill is not 0.

    The type is as given, else as the first table has it.

    Raises:
        InputError: a name or type cannot be that of a side array, or its type is not known.
    """
    if isinstance(names, str):
        names = split_keys(names)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"keep_per_token={names!r}: expected names, as in 'weight,language:uint8'")
    table = None if transform else next((file for file in files if is_table(file.kind)), None)
    found: dict[str, str] = {}
    for given in names:
        name, _, more = given.partition(":")
        dtype, _, fill = more.partition(":")
        if name in found:
            raise InputError(f"--keep-per-token names {name!r} twice")
        check_side(name)
        dtype = _known_type(dtype, given) if dtype else _type_in(table, name)
        check_side(name, dtype)
        found[name] = f"{name}:{dtype}{_fill(fill, dtype, given)}"
    return tuple(found.values())


def _known_type(dtype: str, given: str) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise InputError(
            f"--keep-per-token {given}: {dtype!r} is no type; expected one as in weight:float32, "
            "language:uint8"
        ) from None


def _type_in(table: InputFile | None, name: str) -> str:
    if table is None:
        raise InputError(
            f"--keep-per-token {name}: lines of JSON, and records of a transform, do not say of "
            f"which type numbers are; give it, as in --keep-per-token {name}:float32"
        )
    return list_type(table, name)


def _fill(fill: str, dtype: str, given: str) -> str:
    """What follows the type."""
    try:
        value = as_type(np.array(float(fill or 0)), np.dtype(dtype))
    except ValueError:
        value = None
    if value is None:
        raise InputError(f"--keep-per-token {given}: the fill {fill!r} is no number of {dtype}")
    return f":{value.item()}" if value else ""
