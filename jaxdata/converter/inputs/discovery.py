"""The files of a corpus, and what identifies them."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxdata.converter.inputs.file_types import FileType, endings, is_readable, kind_of
from jaxdata.converter.inputs.identity import look_at
from jaxdata.errors import InputError
from jaxdata.format.storage import local_path

_TAIL = 16
_FETCH = "download the files, or mount the bucket"
Inputs = str | Path | Sequence[str | Path]
_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


class InputFile(NamedTuple):
    """One file of the corpus; there may be millions, so each is small.

    Attributes:
        root: the folder that holds all inputs.
        name: its path below that, with "/".
        size: bytes.
        kind: how it is read.
        digest: 16 hex digits over size, head and tail; not over path and time.
        stamp: differs when the file may have changed.
    """

    root: str
    name: str
    size: int
    kind: FileType
    digest: str
    stamp: int

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.root, self.name)

    @property
    def text_bytes(self) -> int:
        """Bytes of its text, about."""
        return self.size * (_EXPANSION if self.kind.compression else 1)


def find_inputs(inputs: Inputs, files_from: Sequence[str | Path] = ()) -> list[InputFile]:
    """Find the files of files, folders (recursive) and globs, sorted by name.

    Raises:
        InputError: nothing was found, or a file has an unsupported suffix.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    named = [local_path(one, _FETCH) for one in given]
    found = (path for one in [*named, *_listed(files_from)] for path in _expand(one))
    paths = {os.path.abspath(path) for path in found}  # noqa: PTH100 (links stay links)
    if not paths:
        raise InputError("no input files were given; give files, folders or globs")
    root = os.path.commonpath({os.path.split(path)[0] for path in paths})
    names = sorted(path[len(root) :].lstrip("/") for path in paths)
    return [_input_file(root, name) for name in names]


def _input_file(root: str, name: str) -> InputFile:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of {name!r} is not UTF-8; rename the file") from None
    look = look_at(f"{root}/{name}")
    kind = kind_of(name, look.head, look.tail[-_TAIL:])
    return InputFile(root, name, look.size, kind, look.digest, look.stamp)


def _listed(lists: Sequence[str | Path]) -> Iterator[Path]:
    """Give the files, folders and globs listed in files, one per line; # begins a comment.

    Relative paths are relative to the folder of the list.
    """
    for path in map(Path, lists):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--files-from {path} cannot be read ({error}); expected a text file with a file, "
                "folder or glob on each line"
            ) from None
        for line in filter(None, map(str.strip, lines)):
            if not line.startswith("#"):
                yield path.parent / local_path(line, _FETCH)


def _expand(given: Path) -> Iterator[str]:
    """Give the files of a file, a folder (recursive) or a glob."""
    if given.is_dir():
        yield from _search(given)
    elif given.exists():
        yield _supported(str(given))
    else:
        matches = glob.glob(str(given), recursive=True)  # noqa: PTH207
        files = [match for match in matches if Path(match).is_file()]
        if not files:
            raise InputError(f"{given}: no such file or folder, and no file matches this glob")
        yield from (_supported(file) for file in files)


def _search(folder: Path) -> list[str]:
    """Supported files below a folder; skips hidden files and folders, and links to folders."""
    if (folder / "dataset_dict.json").is_file():
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise InputError(
            f"the folder {folder} contains several splits of a Hugging Face dataset; give one of "
            f"{', '.join(str(folder / name) for name in names)}"
        )
    found: list[str] = []
    folders = [str(folder)]
    while folders:
        entries = _entries(folders.pop())
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        if saved := _saved_files(entries):
            found += saved
            continue
        found += [one.path for one in entries if is_readable(one.name) and one.is_file()]
    if not found:
        raise InputError(f"the folder {folder} contains no file that ends in {endings()}")
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder and is not hidden; nothing if it may not be read."""
    with suppress(PermissionError), os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]
    return []


def _saved_files(entries: list[os.DirEntry[str]]) -> list[str]:
    """The files of a dataset that `save_to_disk` of Hugging Face's datasets wrote.

    None that a cache left beside them; nothing if the folder is no such dataset.
    """
    paths = {entry.name: entry.path for entry in entries if entry.is_file()}
    if not {"state.json", "dataset_info.json"} <= paths.keys():
        return []
    try:
        state = json.loads(Path(paths["state.json"]).read_bytes())
        names = [Path(one["filename"]).name for one in state["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{paths['state.json']} was not written by save_to_disk ({error!r}): save the "
            "dataset again"
        ) from None
    if missing := [name for name in names if name not in paths]:
        folder = Path(paths["state.json"]).parent
        raise InputError(f"{folder} lacks {missing[0]!r}, a part of the dataset; save it again")
    return [paths[name] for name in names]


def _supported(file: str) -> str:
    if not is_readable(file):
        raise InputError(f"{file}: unsupported file type; expected {endings()}")
    return file
