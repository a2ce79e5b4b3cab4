"""The files that folders, globs and URLs stand for; what jaxdata made itself is no input.

A folder of this machine and one of a bucket are walked alike, from the top, as `os.walk` does.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from jaxdata.base.errors import InputError
from jaxdata.base.wording import shortened
from jaxdata.converter.inputs.formats.base import endings, is_readable
from jaxdata.storage import cache_root
from jaxdata.storage.client import Facts
from jaxdata.storage.objects import bare_url, is_url, place_of, public_url
from jaxdata.storage.small_files import read_small

_log = logging.getLogger("jaxdata")
_MADE_HERE = {
    "dataset.json": "a dataset of jaxdata",
    "rows.json": "a dataset of jaxdata",
    "log.jsonl": "a run of jaxdata",
}
_BROKEN = (ValueError, AttributeError, KeyError, TypeError, RecursionError, OSError)
"""What reading a file of JSON, and looking into it, may raise."""

Objects = dict[str, Facts]
"""URL -> facts."""
_Walk = Iterator[tuple[str, list[str], Iterable[str]]]
"""Folders, each with the names of folders in it (those that are removed are passed over) and files.
"""


@dataclass(frozen=True)
class Search:
    """What is looked for in folders.

    Attributes:
        output: where the conversion writes, which is no input.
        texts: more suffixes of text files, without the dot.
        unread: gets the number of files of other kinds, by suffix.
    """

    output: str | os.PathLike[str] | None = None
    texts: tuple[str, ...] = ()
    unread: Counter[str] = field(default_factory=Counter)

    def paths(self, given: Path) -> Iterable[str]:
        """The files of a file, a folder (recursive) or a glob of this machine.

        Raises:
            InputError: there are none, or a file has an unsupported suffix.
        """
        if os.path.isdir(given):  # noqa: PTH112 - false where a name is too long, which Path raises
            below = self._below(str(given), os.walk(given))
            return [path for path in below if Path(path).is_file()]
        found = [str(given)]
        if not os.path.exists(given):  # noqa: PTH110
            found = [one for one in glob.glob(str(given), recursive=True) if Path(one).is_file()]  # noqa: PTH207
        elif not os.path.isfile(given):  # noqa: PTH113
            raise InputError(
                f"{given} is a device or a pipe; expected a file or folder. Lines of JSON from a "
                "pipe are read as -, standard input"
            )
        if not found:
            raise InputError(
                f"{shortened(str(given))}: no such file or folder, and no file matches it as a "
                "glob. A data set of the Hugging Face Hub is hf://datasets/USER/NAME; texts are "
                'given as records, [{"text": …}, …], or as a generator of them'
            )
        return map(self._readable, found)

    def objects(self, given: str) -> Objects:
        """The objects of a URL, of a prefix that ends with `/` (recursive), or of a glob.

        Raises:
            InputError: there are none, or an object has an unsupported suffix.
        """
        web = given.startswith("http")
        if "*" in given or (not web and has_wildcard(given)):
            return {self._readable(url): facts for url, facts in _matching(given).items()}
        if not given.endswith("/"):
            if facts := place_of(given).look(given):
                return {self._readable(given): facts}
            if web:
                raise InputError(f"{public_url(given)}: the server has no such file")
        folder = given.rstrip("/")
        listed = dict(place_of(folder).listed(f"{folder}/"))
        if not listed:
            raise InputError(f"{folder}: there is no such object, and none below {folder}/")
        return {url: listed[url] for url in self._below(folder, _walk(folder, listed))}

    def _readable(self, given: str) -> str:
        check_readable(bare_url(given), public_url(given), self.texts)
        return given

    def _below(self, root: str, walk: _Walk) -> list[str]:
        """The files below a folder that are read; none that is hidden, or was made by jaxdata."""
        found: list[str] = []
        for folder, folders, every in walk:
            names = {name for name in every if not name.startswith(".")}
            folders[:] = [name for name in folders if not name.startswith(".")]
            if folder == root:
                _check_root(root, folders, names)
            if what := self._left_out(folder, names):
                _log.warning("%s is left out of the inputs: it is %s", folder, what)
                folders.clear()
                continue
            chosen = _saved(folder, names)
            if chosen is None:
                chosen = [name for name in names if is_readable(name, self.texts)]
                self.unread.update(_suffix(name) for name in names.difference(chosen))
            found += [f"{folder}/{name}" for name in chosen]
        if not found:
            raise InputError(f"the folder {root} contains no file that ends in {_expected()}")
        return found

    def _left_out(self, folder: str, names: Collection[str]) -> str:
        """What a folder with these files is that is no input: the output, the cache, a dataset."""
        places = {str(cache_root().absolute()): "the cache"}
        if self.output is not None:
            places[_absolute(os.fspath(self.output))] = "the output"
        return places.get(_absolute(folder)) or _made_here(folder, names)


def check_readable(name: str, shown: str, texts: tuple[str, ...] = ()) -> None:
    """Raise InputError unless a file can be read by its name; `shown` is what messages call it."""
    if not is_readable(name, texts):
        raise InputError(
            f"{shown}: unsupported file type; expected {_expected()}. Token ids that Megatron or "
            "nanoGPT wrote (.bin) are trained on as they are: give megatron:PREFIX or nanogpt:FILE "
            "in the place of a dataset"
        )


def _expected() -> str:
    return f"{endings()}; other texts are read with --text-suffix .py,.rs"


def _walk(root: str, listed: Iterable[str]) -> _Walk:
    """Walk the folders of some URLs below another."""
    inside: defaultdict[str, tuple[dict[str, None], list[str]]] = defaultdict(lambda: ({}, []))
    for url in listed:
        folder, _, name = url.rpartition("/")
        inside[folder][1].append(name)
        while folder != root:
            folder, _, name = folder.rpartition("/")
            inside[folder][0][name] = None
    folders = [root]
    while folders:
        folder = folders.pop()
        names = list(inside[folder][0])
        yield folder, names, inside[folder][1]
        folders += [f"{folder}/{name}" for name in names]


def _check_root(root: str, folders: Iterable[str], names: Collection[str]) -> None:
    """Refuse a folder that is named and holds no corpus, or several."""
    if "dataset" in (what := _made_here(root, names)):
        raise InputError(
            f"{root} is {what}, not text: give the files that it was made of; to add it to a "
            "mixture, name it in the config"
        )
    if "dataset_dict.json" in names:
        raise InputError(
            f"the folder {root} contains several splits of a Hugging Face dataset; give one of "
            f"{', '.join(f'{root}/{name}' for name in sorted(folders))}"
        )


def _made_here(folder: str, names: Collection[str]) -> str:
    """What jaxdata made that begins with one of these files: a dataset, rows, the log of a run."""
    for name in filter(names.__contains__, _MADE_HERE):
        with suppress(*_BROKEN):
            found, _ = json.JSONDecoder().raw_decode(read_small(f"{folder}/{name}").decode())
            is_run = found.get("event") == "start" and {"step", "backend"} <= found.keys()
            if is_run if name == "log.jsonl" else str(found.get("format")).startswith("jaxdata"):
                return _MADE_HERE[name]
    return ""


def _saved(folder: str, names: Collection[str]) -> list[str] | None:
    """The files of a dataset that `save_to_disk` of Hugging Face's datasets wrote.

    None that a cache left beside them; None at all if the folder is no such dataset.
    """
    if not {"state.json", "dataset_info.json"} <= {*names}:
        return None
    state = f"{folder}/state.json"
    try:
        read = json.loads(read_small(state))
        files = [str(PurePosixPath(one["filename"]).name) for one in read["_data_files"]]
    except _BROKEN as error:
        raise InputError(
            f"{state} was not written by save_to_disk ({error!r}): save the dataset again"
        ) from None
    if missing := [name for name in files if name not in names]:
        raise InputError(f"{folder} lacks {missing[0]!r}, a part of the dataset; save it again")
    return files


def _absolute(path: str) -> str:
    return path.rstrip("/") if is_url(path) else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def _suffix(name: str) -> str:
    suffixes = PurePosixPath(name).suffixes
    packed = suffixes[-1:] and suffixes[-1].lower() in (".gz", ".zst", ".zstd")
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower() or "no suffix"


def _matching(pattern: str) -> Objects:
    prefix = re.split(r"[*?\[]", pattern)[0]
    if prefix.count("/") < 3:
        raise InputError(f"{pattern}: a glob begins after the name of a bucket; give one bucket")
    listed = place_of(pattern).listed(prefix)
    found = {url: facts for url, facts in listed if matches(url, pattern) and url[-1] != "/"}
    if not found:
        raise InputError(f"{pattern}: no object matches this glob")
    return found


def matches(path: str, pattern: str) -> bool:
    """Tell whether a glob matches a path: `*` in a folder, `**` over folders, no hidden names.

    >>> [matches(f"gs://b/{name}", "gs://b/**/*.txt")
    ...     for name in ("a.txt", "c/d/a.txt", ".c/a.txt", "c/.a.txt", "c/a.txt/b")]
    [True, True, False, False, False]
    """
    return _match(path.split("/"), pattern.split("/"))


def _match(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not names
    visible = bool(names) and not names[0].startswith(".")
    if parts[0] == "**":
        return _match(names, parts[1:]) or (visible and _match(names[1:], parts))
    found = visible or (bool(names) and parts[0].startswith("."))
    return found and fnmatchcase(names[0], parts[0]) and _match(names[1:], parts[1:])


def has_wildcard(part: str) -> bool:
    """Tell whether this is a glob."""
    return bool(re.search(r"[*?\[]", part))
