"""Data sets of the Hugging Face Hub, `hf://datasets/user/name`: downloaded into its own cache."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.folders import glob_pattern, has_wildcard
from jaxdata.converter.inputs.formats.base import endings, is_readable, named_format

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/]+))?(?:/(?P<path>.*))?"
)
_SHOWN = 8
_ABOUT = re.compile(r"(^|/)(dataset_infos?|dataset_dict|state|.*config)\.json$")
"""files that say something of others"""
_SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|val|dev|test|eval)(?:ing)?(?![a-z])", re.I)
_SAME = {"valid": "validation", "val": "validation", "dev": "validation", "eval": "test"}


class _Repo(NamedTuple):
    """A data set, at a revision, and what was asked of it."""

    url: str
    name: str
    revision: str | None
    path: str

    def part(self, path: str) -> str:
        """The URL of some of its files."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://datasets/{self.name}{revision}/{path}"


def is_hub(given: str) -> bool:
    """Tell whether this is a URL of the Hub."""
    return given.startswith("hf://")


def downloaded(url: str) -> list[str]:
    """Download a file, those of a folder or glob, or the data files of a whole data set.

    Args:
        url: "hf://datasets/user/name", and perhaps "@revision" and a path in it.

    Returns:
        Paths of this machine, in huggingface_hub's cache; what is there is not downloaded again.

    Raises:
        InputError: there is no such thing, or it has several splits; huggingface_hub is not
            installed, or reaches nobody.
    """
    repo = _repo_of(url)
    try:
        from huggingface_hub import HfApi, constants, snapshot_download
    except ImportError:
        raise InputError(
            f"{url} is on the Hugging Face Hub: pip install huggingface_hub and run the same "
            f"again, or {_by_hand(repo)}"
        ) from None
    get = partial(snapshot_download, repo.name, repo_type="dataset", revision=repo.revision)
    with _asking(repo):
        if constants.HF_HUB_OFFLINE:
            kept = Path(get(local_files_only=True, allow_patterns=[]))  # whatever is there
            files = (path for path in kept.rglob("*") if path.is_file())
            names = sorted(path.relative_to(kept).as_posix() for path in files)
        else:
            api = HfApi()
            names = sorted(
                api.list_repo_files(repo.name, revision=repo.revision, repo_type="dataset")
            )
        chosen = _chosen(repo, names)
        folder = get(allow_patterns=[*map(glob.escape, chosen)])
    return [f"{folder}/{name}" for name in chosen]


def _repo_of(url: str) -> _Repo:
    if not (found := _URL.fullmatch(url)):
        raise InputError(
            f"{url}: expected hf://datasets/USER/NAME, perhaps with @REVISION and a path in it, as "
            "in hf://datasets/USER/NAME@main/data/train-*.parquet"
        )
    revision = found["revision"] and unquote(found["revision"])
    return _Repo(url, found["repo"], revision, (found["path"] or "").strip("/"))


def _by_hand(repo: _Repo) -> str:
    revision = f" --revision {repo.revision}" if repo.revision else ""
    folder = repo.name.rpartition("/")[2]
    return (
        f"download it (hf download {repo.name} --repo-type dataset{revision} --local-dir {folder}) "
        f"and give the folder {folder}"
    )


def _chosen(repo: _Repo, names: Sequence[str]) -> list[str]:
    """The files that a path stands for."""
    if repo.path in names:
        if not is_readable(repo.path):
            raise InputError(f"{repo.url}: unsupported file type; expected {endings()}")
        return [repo.path]
    if has_wildcard(repo.path):
        matches = glob_pattern(repo.path)
        if not (found := [name for name in names if matches.fullmatch(name)]):
            raise InputError(f"{repo.url}: no file of the data set matches this glob")
        if unread := [name for name in found if not is_readable(name)]:
            raise InputError(f"{repo.part(unread[0])}: unsupported file type; expected {endings()}")
        return found
    below = f"{repo.path}/" if repo.path else ""
    inside = [name for name in names if name.startswith(below)]
    if not inside:
        raise InputError(f"{repo.url}: the data set has no such file or folder{_has(names)}")
    if not (data := _data_files(inside)):
        raise InputError(
            f"{repo.url} holds no data file that is read{_has(inside)}; expected {endings()}: name "
            "others by a path or glob"
        )
    _check_one_split(repo, below, data)
    return data


def _data_files(names: Sequence[str]) -> list[str]:
    """The files with many records each; .json where there are no others, since some are notes."""
    visible = [name for name in names if not re.search(r"(^|/)\.", name)]
    many: dict[str, list[str]] = {}
    for name in visible:
        kind = named_format(name)
        if kind and kind.counted != "piece" and not _ABOUT.search(name):
            many.setdefault("json" if kind.name == "json" else "data", []).append(name)
    return many.get("data") or many.get("json") or []


def _check_one_split(repo: _Repo, below: str, names: Sequence[str]) -> None:
    """Refuse what would mix training and test data."""
    splits: set[str] = set()
    parts: dict[str, None] = {}
    for name in names:
        if found := _SPLIT.search(name, len(below)):
            word = found[1].lower()
            splits.add(_SAME.get(word, word))
            parts[name[: found.end()] + "*" * (name[found.end()] != "/")] = None
    if len(splits) > 1:
        each = ", ".join(repo.part(part) for part in sorted(parts)[:_SHOWN])
        raise InputError(
            f"{repo.url} holds several splits ({', '.join(sorted(splits))}): give the files of "
            f"one, or of each with a --split of its own: {each}"
        )


def _has(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return f"; it has {', '.join(names[:_SHOWN])}{more}" if names else ""


@contextmanager
def _asking(repo: _Repo) -> Iterator[None]:
    """Say in a sentence what huggingface_hub says in many."""
    from huggingface_hub import errors

    try:
        yield
    except InputError:
        raise
    except errors.GatedRepoError:
        raise InputError(
            f"{repo.url} is gated: accept its terms at "
            f"https://huggingface.co/datasets/{repo.name}, then hf auth login (or set HF_TOKEN)"
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{repo.url}: the Hub has no data set {repo.name!r}, or it is private: check the name, "
            "or hf auth login (or set HF_TOKEN)"
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{repo.url}: there is no revision {repo.revision!r}") from None
    except Exception as error:  # its transport's own, among others
        raise InputError(
            f"{repo.url} cannot be read: {_said(error)}. HF_HUB_OFFLINE=1 takes what was "
            f"downloaded before; or, where the Hub is reached, {_by_hand(repo)}"
        ) from None


def _said(error: Any) -> str:
    """The first line of an error, without what signs URLs."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"\?[^\s'\"]+", "?…", first).rstrip(".:")
