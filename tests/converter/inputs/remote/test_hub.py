"""Data sets of the Hugging Face Hub, by the real huggingface_hub, from a server on this machine."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.hub import _chosen, _Repo
from tests import commands
from tests.converter.here import decoded, manifest
from tests.converter.inputs.remote.hub_server import HubServer, hub_server


def parquet(*texts: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts)}), sink)
    return sink.getvalue()


NOTES = {
    ".gitattributes": b"",
    "README.md": b"# Notes",
    "dataset_infos.json": b"{}",
    "data/a-0.parquet": parquet("one", "two"),
    "data/a-1.parquet": parquet("three"),
    "more/b.jsonl": b'{"text": "four"}\n',
    "more/licence.txt": b"as you like",
}


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.add("me/notes", NOTES)
        server.add("me/notes", {"old.parquet": parquet("zero")}, "refs/convert/parquet")
        server.add("me/closed", NOTES)
        server.gated.add("me/closed")
        yield server


@pytest.fixture
def near(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process takes the server for the Hub."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{")[2]
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{{{template}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    return monkeypatch


def test_the_command_takes_the_data_files_of_a_data_set(hub: HubServer, tmp_path: Path) -> None:
    places = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    given = ["hf://datasets/me/closed", "--output", tmp_path / "out", "--tokenizer", "bytes"]
    done = commands.apart(
        "convert", *given, "--source", "web", "--workers", "1", env=os.environ | places
    )
    assert decoded(tmp_path / "out") == ["one", "two", "three", "four"]
    inputs = manifest(tmp_path / "out")["sources"]["train/web"]["inputs"]
    assert inputs == ["data/a-0.parquet", "data/a-1.parquet", "more/b.jsonl"]
    written = b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert b"hf_secret" not in written + done.stdout.encode() + done.stderr.encode()


def test_files_are_kept_in_the_cache(hub: HubServer, near: Any) -> None:
    def asked() -> list[str]:
        before = len(hub.asked)
        assert sorted(texts("hf://datasets/me/notes")) == ["four", "one", "three", "two"]
        return hub.asked[before:]

    assert [one for one in asked() if "/resolve/" in one and "GET" in one]
    assert not [one for one in asked() if "/resolve/" in one and "GET" in one]
    near.setattr(constants, "HF_HUB_OFFLINE", True)
    assert asked() == []


@pytest.mark.usefixtures("near")
def test_revisions_globs_lists_and_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"text": "own"}))
    (tmp_path / "list").write_text("hf://datasets/me/notes/data/*-1.parquet\n")
    old = "hf://datasets/me/notes@refs/convert/parquet"
    found = find_inputs([old, tmp_path / "own.jsonl"], [tmp_path / "list"])
    assert {file.path.name for file in found} == {"own.jsonl", "a-1.parquet", "old.parquet"}


def test_what_the_hub_refuses_is_said_with_what_to_do(near: Any) -> None:
    for url in ("hf://me/model", "hf://datasets/me", "hf://spaces/me/it"):
        with pytest.raises(InputError, match="expected hf://datasets/USER/NAME, perhaps with"):
            find_inputs(url)

    def refused(part: str) -> str:
        with pytest.raises(InputError, match=f"^hf://datasets/me/{part} cannot be read: ") as said:
            find_inputs(f"hf://datasets/me/{part}")
        assert "hf_wrong" not in str(said.value)
        return str(said.value)

    assert "Repository Not Found" in refused("nothing")
    assert "--repo-type dataset --revision v9 --local-dir notes) and give" in refused("notes@v9")
    assert "terms accepted at https://huggingface.co/datasets/me/closed" in refused("closed")
    error = OSError("403 for url 'https://cdn/x?Signature=abc&Key=1'\nmore")
    near.setattr("huggingface_hub.HfApi.list_repo_files", mock.Mock(side_effect=error))
    assert "403 for url 'https://cdn/x?…' more. It takes huggingface_hub (pip" in refused("notes")
    near.setitem(sys.modules, "huggingface_hub", None)
    assert "hf download me/notes --repo-type dataset --local-dir notes" in refused("notes/data")


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
        "*.p*": r"hf://datasets/me/it/g\.png: unsupported file type",
        "*.bin": "no such file, or no data file there; expected .* It has README.md, .x/a.jsonl",
        "f": r"hf://datasets/me/it/f: the data set has no such file, .*e\.txt, g\.png$",
        ".x": "or no data file there",
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
