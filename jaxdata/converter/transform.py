"""The user's function on records; workers import it by name, code is never sent."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.source_text import function_named, users_traceback
from jaxdata.converter.tasks import Record

Transform = Callable[[Any], Any]


class TransformFailed(Exception):
    """The user's function raised, or returned something else than records."""


def transform_name(transform: str | Transform | None) -> str | None:
    """Return how a function is named, "module:function", for other processes to import."""
    if transform is None or isinstance(transform, str):
        return transform
    if not callable(transform):
        raise InputError(f'transform={transform!r}: expected a function, or "module:function"')
    name = f"{transform.__module__}:{transform.__qualname__}"
    if transform.__module__ == "__main__" or "<" in name:
        raise InputError(
            f"transform={name} cannot be imported by worker processes: move the function to the "
            'top level of a module and give its name, as in transform="cleaning:keep_english"'
        )
    return name


def transform_digest(name: str | None) -> str | None:
    """16 hex digits over the file that holds the function: changing it changes what is written."""
    if name is None:
        return None
    file = inspect.getsourcefile(inspect.unwrap(function_named(name, "--transform ")))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def transformed(transform: Transform, record: Record) -> Iterator[Record]:
    """Give the records that a record becomes: any number; raises TransformFailed."""
    try:
        made = transform(record)
    except Exception as error:
        raise TransformFailed(f"the transform raised\n{users_traceback(error)}") from None
    many = [] if made is None else [made] if isinstance(made, Mapping) else made
    if not isinstance(many, list | tuple) or not all(isinstance(one, Mapping) for one in many):
        raise TransformFailed(
            f"the transform returned {type(made).__name__} {str(made)[:100]!r}; expected a record "
            "(a dict), a list of records, or None to drop it"
        )
    yield from many
