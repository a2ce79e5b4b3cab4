"""Data sets of the Hugging Face Hub: which files are taken, and what is said where none are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import constants

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from tests.converter.inputs.made import lines

Ask = Callable[..., list[str]]
REPO = "hf://datasets/me/it"


def write(folder: Path, names: list[str]) -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(lines(name))
    return str(folder)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Find the inputs of a URL, where the Hub has a data set of some files; their names."""
    kept = tmp_path / "datasets--me--it"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def asked(url: str, *names: str, revision: str | None = None, offline: bool = False) -> Any:
        def listed(_: Any, repo: str, **more: Any) -> list[str]:
            assert (repo, more) == ("me/it", {"revision": revision, "repo_type": "dataset"})
            return [*names]

        def download(repo: str, *, allow_patterns: list[str], **more: Any) -> str:
            assert (repo, more) == ("me/it", {"revision": revision, "repo_type": "dataset"})
            chosen = [n for n in names if any(fnmatch(n, one) for one in allow_patterns)]
            return write(tmp_path / f"snapshot{len([*tmp_path.iterdir()])}", chosen)

        api, real = huggingface_hub.HfApi, huggingface_hub.snapshot_download
        with monkeypatch.context() as patch:
            patch.setattr(constants, "HF_HUB_OFFLINE", offline)
            if offline:
                write(kept / "snapshots/abc", [*names])
            else:
                spec = mock.create_autospec(api.list_repo_files, side_effect=listed)
                patch.setattr(api, "list_repo_files", spec)
                spec = mock.create_autospec(real, side_effect=download)
                patch.setattr(huggingface_hub, "snapshot_download", spec)
            return [next(n for n in names if file.where.endswith(n)) for file in find_inputs(url)]

    return asked


NAMES = ("README.md", ".x/a.jsonl", "a.parquet", "b/c-[0].jsonl", "config.json", "d.json", "e.txt")
CHOSEN = {
    "": ["a.parquet", "b/c-[0].jsonl"],
    "/b": ["b/c-[0].jsonl"],
    "/e.txt": ["e.txt"],
    "/**/*.json": ["config.json", "d.json"],
}


@pytest.mark.parametrize("offline", [False, True])
def test_the_data_files_of_what_is_asked_for_are_read(ask: Ask, offline: bool) -> None:
    for path, found in CHOSEN.items():
        assert ask(f"{REPO}{path}", *NAMES, offline=offline) == found


def test_a_revision_is_asked_for_and_notes_are_no_data(ask: Ask) -> None:
    assert ask(f"{REPO}@v%201/b", *NAMES, revision="v 1") == ["b/c-[0].jsonl"]
    pull = "refs/pr/1"
    assert ask(f"{REPO}@{pull}/a.parquet", *NAMES, revision=pull) == ["a.parquet"]
    assert ask(REPO, "README.md", "d.json", "dataset_info.json") == ["d.json"]
    assert ask(f"{REPO}/train", "train/contest.jsonl", "train/latest.jsonl"), "no splits of words"
    assert ask(REPO, "en/train/0.jsonl", "de/train/1.jsonl")
    splits = ("data/train-0.jsonl", "data/train-1.jsonl", "data/test-0.jsonl")
    assert ask(f"{REPO}/data/train*", *splits) == [*splits[:2]]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hf://me/model", "expected hf://datasets/USER/NAME, perhaps with"),
        ("hf://datasets/me", "expected hf://datasets/USER/NAME, perhaps with"),
        (f"{REPO}/g.png", r"hf://datasets/me/it/g\.png: unsupported file type"),
        (
            f"{REPO}/*.bin",
            "no such file, or no data file there; expected .* It has data/test-0.parquet",
        ),
        (f"{REPO}/en", r"splits \(train, validation\).* hf://datasets/me/it/en/train$"),
        (f"{REPO}/data", r"\(test, train\): give .*data/test\*, hf://datasets/me/it/data/train\*"),
    ],
)
def test_what_is_no_data_of_one_split_is_refused(ask: Ask, url: str, says: str) -> None:
    names = ("en/dev/0.jsonl", "en/train/0.jsonl", "data/train-0.parquet", "data/test-0.parquet")
    with pytest.raises(InputError, match=says):
        ask(url, *names, "g.png")


def test_what_the_hub_refuses_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError("403 for url 'https://cdn/x?Signature=abc&Key=1'\nmore")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    failing = mock.Mock(side_effect=error)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", failing)
    with pytest.raises(InputError) as said:
        find_inputs("hf://datasets/me/notes@v9")
    for part in (
        "hf://datasets/me/notes@v9 cannot be read: 403 for url 'https://cdn/x?…' more. It takes",
        "terms accepted at https://huggingface.co/datasets/me/notes",
        "hf download me/notes --repo-type dataset --revision v9 --local-dir notes) and give",
    ):
        assert part in str(said.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"It takes huggingface_hub \(pip"):
        find_inputs("hf://datasets/me/notes/data")
