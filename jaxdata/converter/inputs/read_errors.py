"""What goes wrong while an input file is read, as errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxdata.errors import InputError


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an InputError with its name."""
    try:
        yield
    except (EOFError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        raise InputError(
            f"{path} cannot be read to its end ({str(error).rstrip('. ')}): it is truncated "
            "or damaged; replace it, or remove it from the inputs"
        ) from error
