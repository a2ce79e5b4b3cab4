"""The files of a corpus, and what identifies them."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from jaxdata.base.errors import InputError
from jaxdata.base.threads import Threads
from jaxdata.converter.inputs.files import InputFile, Look, look_at, look_at_object
from jaxdata.converter.inputs.folders import Objects, Search, text_suffixes
from jaxdata.converter.inputs.formats.base import Texts, kind_of
from jaxdata.converter.inputs.hub import downloaded, is_hub
from jaxdata.storage.small_files import read_small
from jaxdata.storage.urls import bare_url, is_url, plain_path, public_url

_TAIL = 16
_AT_ONCE = 32
"""Objects that are looked at at a time."""
Inputs = str | Path | Sequence[str | Path]
Output = str | os.PathLike[str] | None
TextSuffix = str | tuple[str, ...] | list[str]


def find_inputs(
    inputs: Inputs,
    files_from: Sequence[str | Path] = (),
    output: Output = None,
    text_suffix: TextSuffix = (),
    unread: Counter[str] | None = None,
) -> list[InputFile]:
    """Find the files of files, folders (recursive) and globs, sorted by name.

    Each may be a path, a URL of a bucket (`gs://`, `s3://`) or a web server (`https://`, which has
    neither folders nor globs), or a data set of the Hugging Face Hub (`hf://datasets/user/name`).
    What lies in a folder and is made here is left out: `output`, and datasets. So are files of
    other kinds, which `unread` counts by suffix; `text_suffix` has more suffixes of texts.

    Raises:
        InputError: nothing was found, or a file has an unsupported suffix.
    """
    wanted = Search(output, text_suffixes(text_suffix), Counter() if unread is None else unread)
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    every = [*map(plain_path, given), *_listed(files_from)]
    every = [path for one in every for path in (downloaded(one) if is_hub(one) else (one,))]
    places: dict[str, list[str]] = {}
    for one in every:
        places.setdefault(one.partition("://")[0] if is_url(one) else "", []).append(one)
    if places.keys() <= {""}:
        return _found_files(every, wanted)
    found = [
        _found_objects(some, wanted) if scheme else _found_files(some, wanted)
        for scheme, some in places.items()
    ]
    return found[0] if len(found) == 1 else _from_several_places(found)


def _from_several_places(found: Sequence[Sequence[InputFile]]) -> list[InputFile]:
    """Files of several places in one order; objects are named with their bucket or server."""
    files: dict[str, InputFile] = {}
    for file in (file for some in found for file in some):
        scheme, _, name = file.where.partition("://")
        each = file._replace(root=f"{scheme}:/", name=name) if file.is_object else file
        if (other := files.setdefault(each.name, each)) is not each:
            raise InputError(
                f"{other.where} and {each.where} would have the same name: convert one of them "
                "first, then the other with --append"
            )
    return [files[name] for name in sorted(files)]


def _found_files(given: Sequence[str], wanted: Search) -> list[InputFile]:
    found = (path for one in given for path in wanted.paths(Path(one).expanduser()))
    paths = {os.path.abspath(path) for path in found}  # noqa: PTH100 (links stay links)
    if not paths:
        raise InputError("no input files were given; give files, folders or globs")
    root = os.path.commonpath({os.path.split(path)[0] for path in paths})
    names = sorted(path[len(root) :].lstrip("/") for path in paths)
    return [_input_file(root, name, look_at(f"{root}/{name}"), wanted.texts) for name in names]


def _found_objects(urls: Sequence[str], wanted: Search) -> list[InputFile]:
    with Threads(_AT_ONCE) as threads:
        objects: Objects = {}
        for some in threads.map(wanted.objects, urls):
            objects |= some
        root = _shared_folder([*map(bare_url, objects)])

        def look(url: str) -> InputFile:
            found, bare = look_at_object(url, objects[url]), bare_url(url)
            file = _input_file(root, bare[len(root) + 1 :], found, wanted.texts)
            return file._replace(version=objects[url].tag, signed=url if url != bare else "")

        return _told_by_content(threads.map(look, sorted(objects)))


def _told_by_content(files: list[InputFile]) -> list[InputFile]:
    """Files with a name each: those that only the query of their URL tells apart get another."""
    times = Counter(file.name for file in files)
    named = (
        file._replace(name=f"{file.name}?{file.digest}") if times[file.name] > 1 else file
        for file in files
    )
    return sorted({file.name: file for file in named}.values(), key=lambda file: file.name)


def _shared_folder(urls: Sequence[str]) -> str:
    """The URL of the innermost folder with all of them.

    >>> _shared_folder(["gs://b/raw/a.txt", "gs://b/raw/c/d.txt"])
    'gs://b/raw'
    """
    first, *others = (url.split("/")[:-1] for url in (min(urls), max(urls)))
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, *others, strict=False))
    return "/".join(one for one, _ in same)


def _input_file(root: str, name: str, look: Look, texts: Texts) -> InputFile:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of {name!r} is not UTF-8; rename the file") from None
    kind = kind_of(name, look.head, look.tail[-_TAIL:], texts)
    return InputFile(root, name, look.size, kind, look.digest, look.stamp)


def _listed(lists: Sequence[str | Path]) -> Iterator[str]:
    """Give the files, folders and globs listed in files, one per line; # begins a comment.

    Relative paths are relative to the folder of the list. A list may have a URL, too.
    """
    for path in map(plain_path, lists):
        try:
            lines = read_small(path).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--files-from {public_url(path)} cannot be read ({error}); expected a text file "
                "with a file, folder or glob on each line"
            ) from None
        folder = path.rpartition("/")[0]
        for line in filter(None, map(str.strip, lines)):
            if not line.startswith("#"):
                yield _beside(folder, plain_path(line))


def _beside(folder: str, given: str) -> str:
    """A path or URL that is relative to a folder, unless it says where it begins."""
    if is_url(given):
        return given
    if not is_url(folder):
        return str(Path(folder, Path(given).expanduser()))
    scheme, _, below = folder.partition("://")
    return f"{scheme}://{posixpath.normpath(f'{below}/{given}')}{'/' * given.endswith('/')}"
