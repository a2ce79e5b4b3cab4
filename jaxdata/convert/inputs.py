"""Finding the files of a corpus, and what identifies them."""

from __future__ import annotations

import glob
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxdata.errors import InputError

__all__ = ["SUFFIXES", "InputFile", "Inputs", "find_inputs", "reading"]

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
Inputs = str | Path | Sequence[str | Path]
_SAMPLE = 64 * 2**10  # bytes of the head and of the tail that identify a file, with its size


@dataclass(frozen=True)
class InputFile:
    """One file of the corpus.

    Attributes:
        path: where it is now.
        name: what the dataset calls it: relative to the folder that holds all inputs.
        size: its bytes.
    """

    path: Path
    name: str
    size: int

    @property
    def format(self) -> str:
        """How its records are written: "jsonl", "txt" or "parquet"."""
        return next(s for s in SUFFIXES if self.name.endswith(s)).split(".")[1]

    @property
    def compressed(self) -> bool:
        """Whether the file is one gzip stream, which can only be read from its beginning."""
        return self.name.endswith(".gz")

    @property
    def first_number(self) -> int:
        """How the first record is numbered: lines count from 1, rows of a table from 0."""
        return 0 if self.format == "parquet" else 1

    def digest(self) -> str:
        """16 hex digits over size, head and tail; not over path and time."""
        content = hashlib.sha256(str(self.size).encode())
        with self.path.open("rb") as file:
            content.update(file.read(_SAMPLE))
            file.seek(max(0, self.size - _SAMPLE))
            content.update(file.read(_SAMPLE))
        return content.hexdigest()[:16]


def find_inputs(inputs: Inputs) -> list[InputFile]:
    """Find the files of files, folders (searched to the bottom) and globs, sorted by name.

    Raises:
        InputError: nothing is there, or a file has a suffix that we do not read.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    found = [path for one in given for path in _expand(Path(one).expanduser())]
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
    return InputFile(path, name, path.stat().st_size)


@contextmanager
def reading(file: InputFile) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an InputError with its name."""
    try:
        yield
    except (EOFError, zlib.error, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{file.path} cannot be read: {error.strerror}") from error
        raise InputError(
            f"{file.path} cannot be read to its end ({str(error).rstrip('. ')}): it is truncated "
            "or damaged; replace it, or leave it out"
        ) from error


def _expand(given: Path) -> Iterator[Path]:
    if given.is_dir():
        yield from _search(given)
    elif given.exists():
        yield _supported(given)
    else:
        matches = [Path(match) for match in glob.glob(str(given), recursive=True)]  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
        if not files:
            raise InputError(f"{given}: no such file or folder, and no file matches it as a glob")
        yield from (_supported(file) for file in files)


def _search(folder: Path) -> list[Path]:
    """Supported files below a folder; hidden files and folders are passed over."""
    found = [
        path
        for path in folder.rglob("*")
        if path.name.endswith(SUFFIXES)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise InputError(f"the folder {folder} holds no file that ends in {_one_of(SUFFIXES)}")
    return found


def _supported(file: Path) -> Path:
    if not file.name.endswith(SUFFIXES):
        raise InputError(f"{file}: cannot read this kind of file; expected {_one_of(SUFFIXES)}")
    return file


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
