"""The objects that a URL or a folder stands for; what this package made itself is no input."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import translate
from pathlib import PurePosixPath
from typing import NamedTuple

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.formats.base import endings, is_readable, not_read
from jaxdata.storage import cache_root
from jaxdata.storage.client import Facts
from jaxdata.storage.objects import bare_url, place_of, public_url, read_object

_log = logging.getLogger("jaxdata")
_MANIFESTS = ("dataset.json", "rows.json")
_LOG = "log.jsonl"
_FORMAT = "jaxdata"
"""what the format of a manifest begins with"""
IS_DATASET = (
    "is a dataset that jaxdata made, not text: give the files that it was made of; to add it to a "
    "mixture, name it in the config"
)
"""what is said of an input"""


class MadeHere:
    """Tells folders apart that are searched for texts; each that is left out is logged once.

    Args:
        output: where the conversion writes; None for nowhere.
        read: gives the content of a file, or None.
    """

    def __init__(
        self, output: str | os.PathLike[str] | None, read: Callable[[str], bytes | None]
    ) -> None:
        self._output = None if output is None else _absolute(os.fspath(output))
        self._read = read

    def is_left_out(self, folder: str, names: set[str]) -> bool:
        """Whether a folder that holds these files is the output, a dataset or a training run."""
        places = {str(cache_root().absolute()): "the cache", self._output: "the output"}
        if place := places.get(_absolute(folder)):
            _log.warning("%s is left out of the inputs: it is %s", folder, place)
            return True
        kind = "dataset" if self.is_dataset(folder, names) else "run"
        if left_out := kind == "dataset" or self._is_run(folder, names):
            _log.warning("%s is left out of the inputs: it is a %s of jaxdata", folder, kind)
        return left_out

    def _is_run(self, folder: str, names: set[str]) -> bool:
        """Whether its log begins as `jaxdata train` begins one."""
        if _LOG not in names:
            return False
        with suppress(ValueError, AttributeError, RecursionError, OSError):
            first = json.loads((self._read(f"{folder}/{_LOG}") or b"").partition(b"\n")[0])
            return bool(first.get("event") == "start" and {"step", "backend"} <= first.keys())
        return False

    def is_dataset(self, folder: str, names: set[str]) -> bool:
        """Whether a folder that holds these files is a dataset, or rows."""
        return any(self._is_ours(f"{folder}/{name}") for name in _MANIFESTS if name in names)

    def _is_ours(self, manifest: str) -> bool:
        with suppress(ValueError, AttributeError, RecursionError, OSError):
            found = json.loads(self._read(manifest) or b"null")
            return str(found.get("format")).startswith(_FORMAT)
        return False


def _absolute(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


class Wanted(NamedTuple):
    """What a search is to find.

    Attributes:
        output: where the conversion writes, which is no input.
        texts: more suffixes of text files, without the dot.
        unread: gets the number of files of other kinds, by suffix.
    """

    output: str | os.PathLike[str] | None
    texts: tuple[str, ...]
    unread: Counter[str]


class WantedFiles(MadeHere):
    """Tells files and folders that are read from others."""

    def __init__(self, wanted: Wanted, read: Callable[[str], bytes | None]) -> None:
        super().__init__(wanted.output, read)
        self.texts, self._unread = wanted.texts, wanted.unread

    def takes(self, name: str) -> bool:
        """Whether a file that was found is read; it is counted if not."""
        found = is_readable(name, self.texts)
        if not found:
            self._unread[_suffix(name)] += 1
        return found


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


_STATE_BYTES = 2**26
Objects = dict[str, Facts]
"""URL -> facts."""


def expand_url(given: str, made: WantedFiles) -> Objects:
    """Find the objects of a URL, a prefix that ends with `/`, or a glob.

    Raises:
        InputError: there are none, or the object has an unsupported suffix.
    """
    web = given.startswith("http")
    if "*" in given or (not web and has_wildcard(given)):
        return _matching(given, made)
    if not given.endswith("/"):
        if facts := place_of(given).look(given):
            return {_supported_schemes(given, made): facts}
        if web:
            raise InputError(f"{public_url(given)}: the server has no such file")
    return _below(given.rstrip("/"), made)


def _matching(pattern: str, made: WantedFiles) -> Objects:
    matches, prefix = glob_pattern(pattern), re.split(r"[*?\[]", pattern)[0]
    if prefix.count("/") < 3:
        raise InputError(f"{pattern}: a glob begins after the name of a bucket; give one bucket")
    listed = place_of(pattern).listed(prefix)
    found = {url: facts for url, facts in listed if matches.fullmatch(url) and url[-1] != "/"}
    if not found:
        raise InputError(f"{pattern}: no object matches this glob")
    return {_supported_schemes(url, made): facts for url, facts in found.items()}


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


def _below(folder: str, made: WantedFiles) -> Objects:
    """The supported objects below a folder; those that are hidden are left out."""
    listed = dict(place_of(folder).listed(f"{folder}/"))
    if not listed:
        raise InputError(f"{folder}: there is no such object, and none below {folder}/")
    below = len(folder) + 1
    names = [url for url in listed if not re.search(r"(^|/)\.", url[below:])]
    if f"{folder}/dataset_dict.json" in listed:
        raise InputError(
            f"{folder}/ contains several splits of a Hugging Face dataset; give the folder of one"
        )
    names = _not_made_here(folder, names, made)
    saved = _saved(names)
    found = {url: listed[url] for url in names if _belongs(url, saved, made)}
    if not found:
        raise InputError(f"{folder}/ contains no object that ends in {endings()}")
    return found


def _not_made_here(root: str, urls: list[str], made: WantedFiles) -> list[str]:
    """The objects that are in no folder of this package."""
    folders: dict[str, set[str]] = {}
    for url in urls:
        folder, _, name = url.rpartition("/")
        folders.setdefault(folder, set()).add(name)
        while (folder := folder.rpartition("/")[0]).startswith(root):
            folders.setdefault(folder, set())
    if made.is_dataset(root, folders.pop(root, set())):
        raise InputError(f"{root} {IS_DATASET}")
    ours = tuple(f"{each}/" for each in sorted(folders) if made.is_left_out(each, folders[each]))
    return [url for url in urls if not url.startswith(ours)]


def _belongs(url: str, saved: dict[str, set[str]], made: WantedFiles) -> bool:
    folder, _, name = url.rpartition("/")
    return name in saved[folder] if folder in saved else made.takes(name)


def _saved(names: Sequence[str]) -> dict[str, set[str]]:
    """The names of the files of each folder that `save_to_disk` of datasets wrote."""
    known = set(names)
    found = {}
    for url in names:
        folder, _, name = url.rpartition("/")
        if name == "state.json" and f"{folder}/dataset_info.json" in known:
            try:
                state = json.loads(read_object(url, _STATE_BYTES) or b"")
                found[folder] = {str(one["filename"]) for one in state["_data_files"]}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise InputError(
                    f"{url} was not written by save_to_disk ({error!r}): save the dataset again"
                ) from None
    return found


def _supported_schemes(url: str, made: WantedFiles) -> str:
    if not is_readable(bare_url(url), made.texts):
        raise InputError(f"{public_url(url)}: {not_read()}")
    return url
