"""The files of a corpus, and what identifies them."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from jaxdata.base.errors import InputError
from jaxdata.base.threads import Threads
from jaxdata.converter.inputs.files import InputFile, Look, look_at, look_at_object
from jaxdata.converter.inputs.folders import Objects, Search
from jaxdata.converter.inputs.formats.base import Texts, kind_of
from jaxdata.converter.inputs.hub import downloaded, is_hub
from jaxdata.storage.objects import bare_url, is_url, plain_path, public_url
from jaxdata.storage.small_files import read_small

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
    search = Search(output, text_suffixes(text_suffix), Counter() if unread is None else unread)
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    every = [*map(plain_path, given), *_listed(files_from)]
    every = [path for one in every for path in (downloaded(one) if is_hub(one) else (one,))]
    found: list[InputFile] = []
    with Threads(_AT_ONCE) as threads:
        local = {
            os.path.abspath(path)  # noqa: PTH100 (links stay links)
            for one in every
            if not is_url(one)
            for path in search.paths(Path(one).expanduser())
        }
        objects: Objects = {}
        for some in threads.map(search.objects, filter(is_url, every)):
            objects |= some
        schemes = {url.partition("://")[0] for url in objects}
        shared = _shared_folder([*map(bare_url, objects)])

        def look(url: str) -> InputFile:
            bare, version = bare_url(url), objects[url].tag
            # Where files are of several places, they are named with their bucket or server.
            several = len(schemes) + bool(local) > 1
            root = f"{bare.partition('://')[0]}:/" if several else shared
            file = _input_file(root, bare, look_at_object(url, objects[url]), search.texts)
            return file._replace(version=version, signed=url if url != bare else "")

        found += threads.map(look, objects)
    folder = _shared_folder(local) or "/"
    found += [_input_file(folder, path, look_at(path), search.texts) for path in local]
    if not found:
        raise InputError("no input files were given; give files, folders or globs")
    return _named(found)


def text_suffixes(given: TextSuffix) -> tuple[str, ...]:
    """Suffixes as users give them, without dots.

    >>> text_suffixes(".py, .rs"), text_suffixes(["PY"])
    (('py', 'rs'), ('py',))
    """
    several = given.split(",") if isinstance(given, str) else given
    return tuple(one.strip().lower().removeprefix(".") for one in several if one.strip(" ."))


def _shared_folder(files: Collection[str]) -> str:
    """The path or URL of the innermost folder with all of some files.

    >>> _shared_folder(["gs://b/raw/a.txt", "gs://b/raw/c/d.txt"])
    'gs://b/raw'
    """
    edges = (min(files, default=""), max(files, default=""))
    first, last = (file.split("/")[:-1] for file in edges)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "/".join(one for one, _ in same)


def _input_file(root: str, where: str, look: Look, texts: Texts) -> InputFile:
    name = where.removeprefix(root).lstrip("/")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of {name!r} is not UTF-8; rename the file") from None
    kind = kind_of(name, look.head, look.tail[-_TAIL:], texts)
    return InputFile(root, name, look.size, kind, look.digest, look.stamp)


def _named(found: Sequence[InputFile]) -> list[InputFile]:
    """Files in the order of their names, which differ."""
    files: dict[str, InputFile] = {}
    for file in found:
        other = files.setdefault(file.name, file)
        if (other.where, other.digest) != (file.where, file.digest):
            raise InputError(
                f"{other.where} and {file.where} would have the same name: convert one of them "
                "first, then the other with --append"
            )
    return [files[name] for name in sorted(files)]


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
