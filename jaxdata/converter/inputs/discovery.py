"""The files that are given: what folders, globs, lists and URLs stand for, and what each file is.

What jaxdata made itself is no input. A folder of this machine and one of a bucket are walked alike,
from the top, as `os.walk` does.
"""

import glob
import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath

from jaxdata.base.errors import InputError, log, shortened
from jaxdata.base.threads import Threads
from jaxdata.converter.inputs.files import InputFile, Look, look_at, look_at_object
from jaxdata.converter.inputs.reading import Texts, expected, is_readable, kind_of
from jaxdata.storage import cache_root, client
from jaxdata.storage.client import Facts
from jaxdata.storage.contract import bare_url, is_url, plain_path, public_url
from jaxdata.storage.small_files import read_lines, read_small

_AT_ONCE = 32
"""Objects that are looked at at a time."""
Inputs = str | Path | Sequence[str | Path]
Output = str | os.PathLike[str] | None
TextSuffix = str | tuple[str, ...] | list[str]
Objects = dict[str, Facts]
"""URL -> facts."""


def find_inputs(
    inputs: Inputs,
    files_from: Sequence[str | Path] = (),
    output: Output = None,
    text_suffix: TextSuffix = (),
    unread: Counter[str] | None = None,
) -> list[InputFile]:
    """Find the files of files, folders (recursive) and globs, sorted by name.

    Each may be a path, or a URL of a bucket (`gs://`, `s3://`) or a web server (`https://`, which
    has neither folders nor globs).
    What lies in a folder and is made here is left out: `output`, and datasets. So are files of
    other kinds, which `unread` counts by suffix; `text_suffix` has more suffixes of texts.

    Raises:
        InputError: nothing was found, or a file has an unsupported suffix.
    """
    search = Search(output, text_suffixes(text_suffix), Counter() if unread is None else unread)
    given = [inputs] if isinstance(inputs, str | Path) else inputs
    every = [*map(plain_path, given), *_listed(files_from)]
    local = {
        os.path.abspath(path)  # noqa: PTH100 (links stay links)
        for one in every
        if not is_url(one)
        for path in search.paths(Path(one).expanduser())
    }
    folder = _shared_folder(local) or "/"
    found = [_input_file(folder, path, look_at(path), search.texts) for path in local]
    objects: Objects = {}
    with Threads(_AT_ONCE) as threads:
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
    if not found:
        raise InputError("no input files were given; give files, folders or globs")
    files: dict[str, InputFile] = {}
    for file in found:
        other = files.setdefault(file.name, file)
        if (other.where, other.digest) != (file.where, file.digest):
            raise InputError(
                f"{other.where} and {file.where} would have the same name: convert one of them "
                "first, then the other with --append"
            )
    return [files[name] for name in sorted(files)]


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
    kind = kind_of(name, look.head, look.tail, texts)
    return InputFile(root, name, look.size, kind, look.digest, look.stamp)


def _listed(lists: Sequence[str | Path]) -> Iterator[str]:
    """Give the files, folders and globs listed in files, one per line; # begins a comment.

    Relative paths are relative to the folder of the list. A list may have a URL, too.
    """
    for path in map(plain_path, lists):
        expected = "a text file with a file, folder or glob on each line"
        folder = path.rpartition("/")[0]
        for line in filter(None, map(str.strip, read_lines(path, "files_from", expected))):
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


_MADE_HERE = {"dataset.json": "dataset", "rows.json": "dataset", "log.jsonl": "run"}
_BROKEN = (ValueError, AttributeError, KeyError, TypeError, RecursionError, OSError)
"""What reading a file of JSON, and looking into it, may raise."""
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
            return filter(os.path.isfile, self._below(str(given), os.walk(given)))
        found = [str(given)]
        if not os.path.exists(given):  # noqa: PTH110
            found = [*filter(os.path.isfile, glob.glob(str(given), recursive=True))]  # noqa: PTH207
        elif not os.path.isfile(given):  # noqa: PTH113
            raise InputError(
                f"{given} is a device or a pipe; expected a file or folder. Lines of JSON from a "
                "pipe are read as -, standard input"
            )
        if not found:
            raise InputError(
                f"{shortened(str(given))}: no such file or folder, and no file matches it as a "
                "glob. A data set of the Hugging Face Hub is downloaded first (hf download "
                "USER/NAME --repo-type dataset --local-dir NAME). Strings are paths: give texts as "
                'records, [{"text": …}, …], or as a generator of them'
            )
        return map(self._readable, found)

    def objects(self, given: str) -> Objects:
        """The objects of a URL, of a prefix that ends with `/` (recursive), or of a glob.

        Raises:
            InputError: there are none, or an object has an unsupported suffix.
        """
        prefix, *wildcards = re.split(r"[*?\[]", bare_url(given))
        if wildcards:
            if prefix.count("/") < 3:
                raise InputError(f"{given}: a glob begins after the name of a bucket; give one")
            found = {
                self._readable(url): facts
                for url, facts in client.listed(prefix)
                # An empty object may mark a folder.
                if matches(url.split("/"), given.split("/"))
                and (facts.size or is_readable(url, self.texts))
            }
            if not found:
                raise InputError(f"{given}: no object matches this glob")
            return found
        if not given.endswith("/"):
            if facts := client.look(given):
                return {self._readable(given): facts}
            if given.startswith("http"):
                raise InputError(f"{public_url(given)}: the server has no such file")
        folder = given.rstrip("/")
        listed = dict(client.listed(f"{folder}/"))
        if not listed:
            raise InputError(f"{folder}: there is no such object, and none below {folder}/")
        return {url: listed[url] for url in self._below(folder, _walk(folder, listed))}

    def _readable(self, given: str) -> str:
        if not is_readable(bare_url(given), self.texts):
            raise InputError(
                f"{public_url(given)}: unsupported file type; expected {expected()}. Token ids "
                "that Megatron or nanoGPT wrote (.bin) are trained on as they are: give "
                "megatron:PREFIX or nanogpt:FILE in the place of a dataset"
            )
        return given

    def _below(self, root: str, walk: _Walk) -> list[str]:
        """The files below a folder that are read; none that is hidden, or was made by jaxdata."""
        found: list[str] = []
        for folder, folders, every in walk:
            names = {name for name in every if not name.startswith(".")}
            folders[:] = [name for name in folders if not name.startswith(".")]
            if what := self._left_out(folder, names):
                if folder == root:
                    raise InputError(
                        f"{root} is {what}, not text: give the files that it was made of; to add "
                        "a dataset to a mixture, name it in the config"
                    )
                log.warning("%s is left out of the inputs: it is %s", folder, what)
                folders.clear()
                continue
            chosen = _saved(folder, names)
            if chosen is None:
                chosen = [name for name in names if is_readable(name, self.texts)]
                self.unread.update(_suffix(name) for name in names.difference(chosen))
            found += [f"{folder}/{name}" for name in chosen]
        if not found:
            raise InputError(f"the folder {root} contains no file that ends in {expected()}")
        return found

    def _left_out(self, folder: str, names: Collection[str]) -> str:
        """What a folder with these files is that is no input: the output, the cache, a dataset."""
        if self.output is not None and _absolute(folder) == _absolute(os.fspath(self.output)):
            return "the output"
        if _absolute(folder) == str(cache_root().absolute()):
            return "the cache"
        for name in filter(names.__contains__, _MADE_HERE):
            with suppress(*_BROKEN):
                found, _ = json.JSONDecoder().raw_decode(read_small(f"{folder}/{name}").decode())
                is_run = found.get("event") == "start" and {"step", "backend"} <= found.keys()
                if is_run or str(found.get("format")).startswith("jaxdata"):
                    return f"a {_MADE_HERE[name]} of jaxdata"
        return ""


def matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Tell whether a glob matches a path: `*` in a folder, `**` over folders, no hidden names.

    Both are given in the parts between slashes.

    >>> [matches(f"b/{name}".split("/"), "b/**/*.txt".split("/"))
    ...     for name in ("a.txt", "c/d/a.txt", ".c/a.txt", "c/.a.txt", "c/a.txt/b")]
    [True, True, False, False, False]
    """
    if not parts:
        return not names
    visible = bool(names) and not names[0].startswith(".")
    if parts[0] == "**":
        return matches(names, parts[1:]) or (visible and matches(names[1:], parts))
    found = visible or (bool(names) and parts[0].startswith("."))
    return found and fnmatchcase(names[0], parts[0]) and matches(names[1:], parts[1:])


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


def _saved(folder: str, names: Collection[str]) -> list[str] | None:
    """The files of a dataset that `save_to_disk` of Hugging Face's datasets wrote.

    None that a cache left beside them; None at all if the folder is no such dataset. One of several
    splits is refused, so that no test data is trained on.
    """
    if "dataset_dict.json" in names:
        raise InputError(
            f"{folder} contains several splits of a Hugging Face dataset; give the folder of one, "
            f"as {folder}/train"
        )
    if not {"state.json", "dataset_info.json"} <= {*names}:
        return None
    try:
        read = json.loads(read_small(f"{folder}/state.json"))
        files = [PurePosixPath(one["filename"]).name for one in read["_data_files"]]
        if missing := [name for name in files if name not in names]:
            raise KeyError(missing[0])
    except _BROKEN as error:
        raise InputError(
            f"{folder} is not whole as save_to_disk wrote it ({error!r}): save the dataset again"
        ) from None
    return files


def _absolute(path: str) -> str:
    return path.rstrip("/") if is_url(path) else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def _suffix(name: str) -> str:
    suffixes = PurePosixPath(name).suffixes
    packed = suffixes[-1:] and suffixes[-1].lower() in (".gz", ".zst", ".zstd")
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower() or "no suffix"
