"""Data sets of the Hugging Face Hub: which files are taken, and what is said where none are."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import constants

from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.hub import _chosen, _Repo
from tests.converter.inputs.made import lines

NOTES = {
    ".gitattributes": b"",
    "README.md": b"# Notes",
    "dataset_infos.json": b"{}",
    "data/a-[0].jsonl": lines("one", "two"),
    "data/a-1.jsonl": lines("three"),
    "more/b.jsonl": lines("four"),
    "more/licence.txt": b"as you like",
}


def write(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(NOTES[name])
    return folder


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What huggingface_hub is asked for, whose data set has the files of `NOTES`."""
    found: list[Any] = []

    def listed(_: Any, repo: str, *, revision: str | None, repo_type: str) -> list[str]:
        found.append((repo_type, repo, revision))
        return sorted(NOTES)

    def download(repo: str, *, allow_patterns: list[str], **more: Any) -> str:
        chosen = [n for n in NOTES if any(fnmatch(n, one) for one in allow_patterns)]
        found.append((more.pop("repo_type"), repo, more.pop("revision"), len(chosen)))
        assert not more
        return str(write(tmp_path / "snapshot", chosen))

    api, real = huggingface_hub.HfApi, huggingface_hub.snapshot_download
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    spec = mock.create_autospec(api.list_repo_files, side_effect=listed)
    monkeypatch.setattr(api, "list_repo_files", spec)
    spec = mock.create_autospec(real, side_effect=download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", spec)
    return found


def test_the_data_files_of_what_is_asked_for_are_downloaded(
    asked: list[Any], tmp_path: Path
) -> None:
    assert sorted(texts("hf://datasets/me/notes")) == ["four", "one", "three", "two"]
    (tmp_path / "own.jsonl").write_text(json.dumps({"text": "own"}))
    (tmp_path / "list").write_text("hf://datasets/me/notes@refs/pr/1/data/*-1.jsonl\n")
    found = find_inputs(
        ["hf://datasets/me/it@v%201/more", tmp_path / "own.jsonl"], [tmp_path / "list"]
    )
    assert {file.path.name for file in found} == {"own.jsonl", "a-1.jsonl", "b.jsonl"}
    assert asked == [
        ("dataset", "me/notes", None),
        ("dataset", "me/notes", None, 3),
        ("dataset", "me/it", "v 1"),
        ("dataset", "me/it", "v 1", 1),
        ("dataset", "me/notes", "refs/pr/1"),
        ("dataset", "me/notes", "refs/pr/1", 1),
    ]


def test_what_was_downloaded_is_read_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "datasets--me--notes"
    write(kept / "snapshots/abc", [*NOTES])
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sorted(texts("hf://datasets/me/notes")) == ["four", "one", "three", "two"]


@pytest.mark.usefixtures("asked")
def test_what_the_hub_refuses_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("hf://me/model", "hf://datasets/me", "hf://spaces/me/it"):
        with pytest.raises(InputError, match="expected hf://datasets/USER/NAME, perhaps with"):
            find_inputs(url)
    error = OSError("403 for url 'https://cdn/x?Signature=abc&Key=1'\nmore")
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


def chosen(path: str, *names: str) -> list[str]:
    url = f"hf://datasets/me/it/{path}" if path else "hf://datasets/me/it"
    return _chosen(_Repo(url, "me/it", None, path), names)


def test_which_files_are_data() -> None:
    names = ("README.md", ".x/a.jsonl", "a.parquet", "b/c.jsonl.gz", "config.json", "d.json")
    names += ("e.txt", "g.png")
    for path, found in {
        "": ["a.parquet", "b/c.jsonl.gz"],
        "b": ["b/c.jsonl.gz"],
        "e.txt": ["e.txt"],
        "**/*.json": ["config.json", "d.json"],
    }.items():
        assert chosen(path, *names) == found
    assert chosen("", "README.md", "d.json", "dataset_info.json") == ["d.json"]
    for path, said in {
        "g.png": r"hf://datasets/me/it/g\.png: unsupported file type",
        "*.bin": "no such file, or no data file there; expected .* It has README.md, .x/a.jsonl",
        ".x": "or no data file there; .* d.json, e.txt, g.png$",
    }.items():
        with pytest.raises(InputError, match=said):
            chosen(path, *names)


def test_training_and_test_data_are_not_mixed() -> None:
    names = ("data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet")
    with pytest.raises(InputError) as refused:
        chosen("", *names)
    assert "holds several splits (test, train): give the files of one" in str(refused.value)
    assert "hf://datasets/me/it/data/test*, hf://datasets/me/it/data/train*" in str(refused.value)
    assert chosen("data/train*", *names) == [*names[:2]]
    with pytest.raises(InputError, match=r"\(train, validation\).* hf://datasets/me/it/en/train$"):
        chosen("", "en/train/0.parquet", "en/dev/0.parquet")
    assert chosen("", "en/train/0.parquet", "de/train/0.parquet")
    assert chosen("train", "train/contest.jsonl", "train/latest.jsonl")  # no words of their own
