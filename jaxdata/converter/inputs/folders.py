"""The files that folders, globs and URLs stand for; what jaxdata made itself is no input.

A folder of this machine and one of a bucket are walked alike, from the top, as `os.walk` does.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path, PurePosixPath

from jaxdata.base.errors import InputError
from jaxdata.base.wording import shortened
from jaxdata.converter.inputs.formats.base import OR_TEXTS, endings, is_readable, not_read
from jaxdata.storage import cache_root, client
from jaxdata.storage.client import Facts
from jaxdata.storage.small_files import read_small
from jaxdata.storage.urls import bare_url, is_url, public_url

_log = logging.getLogger("jaxdata")
_MANIFESTS = ("dataset.json", "rows.json")
_FORMAT = "jaxdata"
"""What the format of a manifest begins with."""
_IS_DATASET = (
    "is a dataset that jaxdata made, not text: give the files that it was made of; to add it to a "
    "mixture, name it in the config"
)
_BROKEN = (ValueError, AttributeError, KeyError, TypeError, RecursionError, OSError)
"""What reading a file of JSON, and looking into it, may raise."""

Objects = dict[str, Facts]
"""URL -> facts."""
_Walk = Iterator[tuple[str, list[str], list[str]]]
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
        if not os.path.exists(given):  # noqa: PTH110
            matches = glob.glob(str(given), recursive=True)  # noqa: PTH207
            if not (files := [match for match in matches if Path(match).is_file()]):
                raise _not_found(str(given))
            return map(self._readable, files)
        if not os.path.isfile(given):  # noqa: PTH113
            raise InputError(
                f"{given} is a device or a pipe; expected a file or folder. Lines of JSON from a "
                "pipe are read as -, standard input"
            )
        return [self._readable(str(given))]

    def objects(self, given: str) -> Objects:
        """The objects of a URL, of a prefix that ends with `/` (recursive), or of a glob.

        Raises:
            InputError: there are none, or an object has an unsupported suffix.
        """
        web = given.startswith("http")
        if "*" in given or (not web and has_wildcard(given)):
            return {self._readable(url): facts for url, facts in _matching(given).items()}
        if not given.endswith("/"):
            if facts := client.look(given):
                return {self._readable(given): facts}
            if web:
                raise InputError(f"{public_url(given)}: the server has no such file")
        folder = given.rstrip("/")
        listed = dict(client.listed(f"{folder}/"))
        if not listed:
            raise InputError(f"{folder}: there is no such object, and none below {folder}/")
        return {url: listed[url] for url in self._below(folder, _walk(folder, listed))}

    def _readable(self, given: str) -> str:
        remote = is_url(given)
        if not is_readable(bare_url(given) if remote else given, self.texts):
            ids = None if remote else _of_tokens(Path(given))
            raise InputError(f"{public_url(given)}: {ids or not_read()}")
        return given

    def _below(self, root: str, walk: _Walk) -> list[str]:
        """The files below a folder that are read; none that is hidden, or was made by jaxdata."""
        found: list[str] = []
        for folder, folders, every in walk:
            names = {name for name in every if not name.startswith(".")}
            folders[:] = [name for name in folders if not name.startswith(".")]
            if folder == root:
                _check_root(root, folders, names)
            if self._is_left_out(folder, names):
                folders.clear()
                continue
            chosen = _saved(folder, names)
            if chosen is None:
                chosen = [name for name in names if is_readable(name, self.texts)]
                self.unread.update(_suffix(name) for name in names.difference(chosen))
            found += [f"{folder}/{name}" for name in chosen]
        if not found:
            raise InputError(
                f"the folder {root} contains no file that ends in {endings()}{OR_TEXTS}"
            )
        return found

    def _is_left_out(self, folder: str, names: Collection[str]) -> bool:
        """Whether a folder with these files is the output, the cache, a dataset or a run."""
        output = None if self.output is None else _absolute(os.fspath(self.output))
        places = {str(cache_root().absolute()): "the cache", output: "the output"}
        what = places.get(_absolute(folder))
        if not what and _is_dataset(folder, names):
            what = "a dataset of jaxdata"
        if not what and _is_run(folder, names):
            what = "a run of jaxdata"
        if what:
            _log.warning("%s is left out of the inputs: it is %s", folder, what)
        return bool(what)


def _walk(root: str, listed: Iterable[str]) -> _Walk:
    """Walk the folders of some URLs below another."""
    inside: dict[str, tuple[dict[str, None], list[str]]] = {root: ({}, [])}
    for url in listed:
        folder, _, name = url.rpartition("/")
        missing = []
        while folder not in inside:
            inside[folder] = {}, []
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        for each in missing:
            above, _, own = each.rpartition("/")
            inside[above][0][own] = None
        inside[url.rpartition("/")[0]][1].append(name)
    folders = [root]
    while folders:
        folder = folders.pop()
        names = list(inside[folder][0])
        yield folder, names, inside[folder][1]
        folders += [f"{folder}/{name}" for name in names]


def _check_root(root: str, folders: Iterable[str], names: Collection[str]) -> None:
    """Refuse a folder that is named and holds no corpus, or several."""
    if _is_dataset(root, names):
        raise InputError(f"{root} {_IS_DATASET}")
    if "dataset_dict.json" in names:
        raise InputError(
            f"the folder {root} contains several splits of a Hugging Face dataset; give one of "
            f"{', '.join(f'{root}/{name}' for name in sorted(folders))}"
        )


def _is_dataset(folder: str, names: Collection[str]) -> bool:
    """Whether a folder with these files is a dataset, or rows."""
    for name in filter(names.__contains__, _MANIFESTS):
        with suppress(*_BROKEN):
            found = json.loads(read_small(f"{folder}/{name}"))
            if str(found.get("format")).startswith(_FORMAT):
                return True
    return False


def _is_run(folder: str, names: Collection[str]) -> bool:
    """Whether its log begins as `jaxdata train` begins one."""
    if "log.jsonl" in names:
        with suppress(*_BROKEN):
            first = json.loads(read_small(f"{folder}/log.jsonl").partition(b"\n")[0])
            return bool(first.get("event") == "start" and {"step", "backend"} <= first.keys())
    return False


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


def text_suffixes(given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Suffixes as users give them, without dots.

    >>> text_suffixes(".py, .rs"), text_suffixes(["PY"])
    (('py', 'rs'), ('py',))
    """
    several = given.split(",") if isinstance(given, str) else given
    return tuple(one.strip().lower().removeprefix(".") for one in several if one.strip(" ."))


def _suffix(name: str) -> str:
    suffixes = PurePosixPath(name).suffixes
    packed = suffixes[-1:] and suffixes[-1].lower() in (".gz", ".zst", ".zstd")
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower() or "no suffix"


def _not_found(given: str) -> InputError:
    what = ", and no file matches this glob" if glob.has_magic(given) else ""
    named = Path(given).suffix or "/" in given
    texts = (
        '; strings are paths: give texts as records, [{"text": …}, …], or as a generator of them'
    )
    is_text = " " in given or not named
    return InputError(
        f"{shortened(given)}: no such file or folder{what}{_hub_hint(given)}{texts * is_text}"
    )


def _hub_hint(given: str | Path) -> str:
    """What to say of a path that is not there and looks like the name of a data set.

    >>> _hub_hint("user/name"), _hub_hint("data/a.jsonl")
    ('; the data set of the Hugging Face Hub is hf://datasets/user/name', '')
    """
    name = str(given)
    looks_so = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and not is_readable(name)
    return f"; the data set of the Hugging Face Hub is hf://datasets/{given}" if looks_so else ""


def _of_tokens(file: Path) -> str | None:
    """What is said of a file of token ids, by its suffix; None of other files."""
    if file.suffix not in {".bin", ".idx"}:
        return None
    pair = all(file.with_suffix(suffix).exists() for suffix in (".bin", ".idx"))
    spec = f"megatron:{file.with_suffix('')}" if pair else f"nanogpt:{file}"
    tool = "Megatron" if pair else "nanoGPT"
    return (
        f"if {tool} wrote it, it has token ids, not text, and is trained on as it is: give {spec} "
        "in the place of a dataset"
    )


def _matching(pattern: str) -> Objects:
    matches, prefix = glob_pattern(pattern), re.split(r"[*?\[]", pattern)[0]
    if prefix.count("/") < 3:
        raise InputError(f"{pattern}: a glob begins after the name of a bucket; give one bucket")
    listed = client.listed(prefix)
    found = {url: facts for url, facts in listed if matches.fullmatch(url) and url[-1] != "/"}
    if not found:
        raise InputError(f"{pattern}: no object matches this glob")
    return found


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """As `glob` matches paths: `*` within a folder, `**` over folders, no hidden names.

    >>> [bool(glob_pattern("gs://b/**/*.txt").fullmatch(f"gs://b/{name}"))
    ...     for name in ("a.txt", "c/d/a.txt", ".c/a.txt", "c/.a.txt", "c/a.txt/b")]
    [True, True, False, False, False]
    """
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(r"(?:(?!\.)[^/]+/)*")
            continue
        # Without its end, which is not that of the whole, and nothing in it matches a slash.
        some = translate(part)[:-2] if has_wildcard(part) else ""
        some = re.sub(r"(?<!\\)\[\^", "(?!/)[^", some)
        inside = re.sub(r"(?<!\\)\.(?![^\[]*\])", "[^/]", some)
        hidden = "" if part.startswith(".") else r"(?!\.)"
        parts.append((hidden + inside if inside else re.escape(part)) + "/")
    return re.compile("".join(parts).removesuffix("/"))


def has_wildcard(part: str) -> bool:
    """Tell whether this is a glob."""
    return bool(re.search(r"[*?\[]", part))
