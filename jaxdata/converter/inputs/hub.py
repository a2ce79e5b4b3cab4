"""Data sets of the Hugging Face Hub, `hf://datasets/user/name`: downloaded into its own cache."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from jaxdata.base.errors import InputError
from jaxdata.base.wording import shortened
from jaxdata.converter.inputs.formats.base import (
    check_readable,
    endings,
    has_wildcard,
    matches,
    named_format,
)

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
    if not (found := _URL.fullmatch(url)):
        raise InputError(
            f"{url}: expected hf://datasets/USER/NAME, perhaps with @REVISION and a path in it, as "
            "in hf://datasets/USER/NAME@main/data/train-*.parquet"
        )
    revision = found["revision"] and unquote(found["revision"])
    repo = _Repo(url, found["repo"], revision, (found["path"] or "").strip("/"))
    try:
        return _download(repo)
    except InputError:
        raise
    except Exception as error:  # of huggingface_hub, of its transport, or that it is not there
        said = " ".join(str(error).split()) or type(error).__name__
        unsigned = shortened(re.sub(r"\?[^\s'\"]+", "?…", said), 200).rstrip(".:")
        folder = repo.name.rpartition("/")[2]
        at = f" --revision {revision}" if revision else ""
        raise InputError(
            f"{url} cannot be read: {unsigned}. It takes huggingface_hub (pip install "
            "'jaxdata[hf]') and the right name and revision; what is private or gated takes hf "
            "auth login (or HF_TOKEN), and its terms accepted at https://huggingface.co/datasets/"
            f"{repo.name}. HF_HUB_OFFLINE=1 takes what was downloaded before. Or download it (hf "
            f"download {repo.name} --repo-type dataset{at} --local-dir {folder}) and give the "
            f"folder {folder}"
        ) from None


def _download(repo: _Repo) -> list[str]:
    from huggingface_hub import HfApi, constants, snapshot_download

    get = partial(snapshot_download, repo.name, repo_type="dataset", revision=repo.revision)
    if constants.HF_HUB_OFFLINE:
        kept = Path(get(local_files_only=True, allow_patterns=[]))  # whatever is there
        names = [path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()]
    else:
        names = HfApi().list_repo_files(repo.name, revision=repo.revision, repo_type="dataset")
    chosen = _chosen(repo, sorted(names))
    folder = get(allow_patterns=[*map(glob.escape, chosen)])
    return [f"{folder}/{name}" for name in chosen]


def _chosen(repo: _Repo, names: Sequence[str]) -> list[str]:
    """The files that a path stands for."""
    if repo.path in names or has_wildcard(repo.path):
        found = [name for name in names if name == repo.path or matches(name, repo.path)]
        for name in found:
            check_readable(name, repo.part(name))
    else:
        below = f"{repo.path}/" if repo.path else ""
        found = _data_files([name for name in names if name.startswith(below)])
        _check_one_split(repo, below, found)
    if not found:
        has = ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)
        raise InputError(
            f"{repo.url}: the data set has no such file, or no data file there; expected "
            f"{endings()}: name others by a path or glob. It has {has or 'none'}"
        )
    return found


def _data_files(names: Sequence[str]) -> list[str]:
    """The files with many records each; .json where there are no others, since some are notes."""
    many: dict[bool, list[str]] = {False: [], True: []}
    for name in names:
        kind = named_format(name)
        hidden = re.search(r"(^|/)\.", name)
        if kind and kind.counted != "piece" and not hidden and not _ABOUT.search(name):
            many[kind.name == "json"].append(name)
    return many[False] or many[True]


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
