"""The files that an input names: a file, a folder, a glob, or a list of those in a file."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxdata.convert.kinds import ENDINGS, is_readable
from jaxdata.errors import InputError

__all__ = ["expand", "listed"]


def listed(lists: Sequence[str | Path]) -> Iterator[Path]:
    """Give the files, folders and globs that stand in files, one a line; # begins a comment.

    Relative ones are taken from the folder of the file they stand in.
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
                yield path.parent / Path(line).expanduser()


def expand(given: Path) -> Iterator[Path]:
    """Give the files of a file, a folder (searched to the bottom) or a glob."""
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
    if (folder / "dataset_dict.json").is_file():
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise InputError(
            f"the folder {folder} holds several splits of a Hugging Face dataset: give one of "
            f"{', '.join(str(folder / name) for name in names)}"
        )
    saved = {path.parent for path in folder.rglob("state.json") if _is_saved(path.parent)}
    found = [path for one in saved for path in _saved_files(one)]
    found += [
        path
        for path in folder.rglob("*")
        if is_readable(path.name)
        and path.parent not in saved
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise InputError(f"the folder {folder} holds no file that ends in {ENDINGS}")
    return found


def _is_saved(folder: Path) -> bool:
    """Tell whether `save_to_disk` of Hugging Face's datasets wrote a folder."""
    return (folder / "dataset_info.json").is_file()


def _saved_files(folder: Path) -> list[Path]:
    """The files of a dataset that `save_to_disk` wrote, and none that a cache left beside."""
    try:
        state = json.loads((folder / "state.json").read_bytes())
        names = [Path(one["filename"]).name for one in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / 'state.json'} is not what save_to_disk writes ({error!r}): save the "
            "dataset again"
        ) from None
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} lacks {missing[0]!r}, a part of the dataset; save it again")
    return [folder / name for name in names]


def _supported(file: Path) -> Path:
    if not is_readable(file.name):
        raise InputError(f"{file}: cannot read this kind of file; expected {ENDINGS}")
    return file
