"""The objects that a URL stands for: itself, what lies below it, or what matches it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import translate

from jaxdata.converter.inputs.file_types import endings, is_readable, not_read
from jaxdata.converter.inputs.made_here import IS_DATASET
from jaxdata.converter.inputs.wanted_files import WantedFiles
from jaxdata.errors import InputError
from jaxdata.format.storage.objects import Facts, bare_url, place_of, public_url, read_object

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
            return {_supported(given, made): facts}
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
    return {_supported(url, made): facts for url, facts in found.items()}


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


def _supported(url: str, made: WantedFiles) -> str:
    if not is_readable(bare_url(url), made.texts):
        raise InputError(f"{public_url(url)}: {not_read()}")
    return url
