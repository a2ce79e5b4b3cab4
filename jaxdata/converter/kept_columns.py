"""Of which types the columns are that `--keep-per-token` names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jaxdata.converter.inputs.formats.tables import list_type
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.errors import InputError
from jaxdata.format.side_rules import check_side


def with_types(
    names: Iterable[str], files: Sequence[InputFile], task: str, transform: object = None
) -> tuple[str, ...]:
    """Complete names to "name:dtype": as given, else as the first table has it.

    Raises:
        InputError: a name or type cannot be that of a side array, or its type is not known.
    """
    table = None if transform else next((file for file in files if file.kind.table), None)
    found: dict[str, str] = {}
    for given in names:
        name, _, dtype = given.partition(":")
        if name in found:
            raise InputError(f"--keep-per-token names {name!r} twice")
        found[name] = _known_type(dtype, name) if dtype else _type_in(table, name, task)
        check_side(name, found[name])
    return tuple(f"{name}:{dtype}" for name, dtype in found.items())


def _known_type(dtype: str, name: str) -> str:
    try:
        return np.dtype(dtype).name
    except TypeError:
        raise InputError(
            f"--keep-per-token {name}:{dtype}: {dtype!r} is no type; expected one as "
            f"{name}:float32, {name}:int8"
        ) from None


def _type_in(table: InputFile | None, name: str, task: str) -> str:
    if table is None:
        raise InputError(
            f"--keep-per-token {name}: lines of JSON, and records of a transform, do not say of "
            f"which type numbers are; give it, as in --keep-per-token {name}:float32"
        )
    return list_type(table, name)
