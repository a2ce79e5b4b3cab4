"""The files of a corpus, and what identifies them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxdata.convert.folders import expand, listed
from jaxdata.convert.kinds import HEAD, Kind, kind_of
from jaxdata.errors import InputError

__all__ = ["InputFile", "Inputs", "find_inputs", "reading"]

_TAIL = 16
Inputs = str | Path | Sequence[str | Path]
_SAMPLE = 64 * 2**10  # bytes of the head and of the tail that identify a file, with its size
_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


@dataclass(frozen=True)
class InputFile:
    """One file of the corpus.

    Attributes:
        path: where it is now.
        name: what the dataset calls it: relative to the folder that holds all inputs.
        size: its bytes.
        kind: how to read it.
    """

    path: Path
    name: str
    size: int
    kind: Kind

    @property
    def text_bytes(self) -> int:
        """Bytes of its text, about."""
        return self.size * (_EXPANSION if self.kind.compression else 1)

    def digest(self) -> str:
        """16 hex digits over size, head and tail; not over path and time."""
        content = hashlib.sha256(str(self.size).encode())
        with self.path.open("rb") as file:
            content.update(file.read(_SAMPLE))
            file.seek(max(0, self.size - _SAMPLE))
            content.update(file.read(_SAMPLE))
        return content.hexdigest()[:16]


def find_inputs(inputs: Inputs, files_from: Sequence[str | Path] = ()) -> list[InputFile]:
    """Find the files of files, folders (searched to the bottom) and globs, sorted by name.

    Args:
        inputs: files, folders or globs.
        files_from: files that name more of them, one a line.

    Raises:
        InputError: nothing is there, or a file has a suffix that we do not read.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    named = [Path(one).expanduser() for one in given]
    found = [path for one in [*named, *listed(files_from)] for path in expand(one)]
    if not found:
        raise InputError("no input files were given; give files, folders or globs")
    paths = {Path(os.path.abspath(path)) for path in found}  # noqa: PTH100 (links stay links)
    root = os.path.commonpath([path.parent for path in paths])
    return sorted((_input_file(path, root) for path in paths), key=lambda file: file.name)


def _input_file(path: Path, root: str) -> InputFile:
    name = path.relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of {name!r} is not UTF-8; rename the file") from None
    with reading(path), path.open("rb") as file:
        head = file.read(HEAD)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        return InputFile(path, name, size, kind_of(name, head, file.read(_TAIL)))


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
            "or damaged; replace it, or leave it out"
        ) from error
