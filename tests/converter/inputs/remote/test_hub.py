"""Data sets of the Hugging Face Hub, by the real huggingface_hub, from a server on this machine."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.hub import _chosen, _Repo, _said
from tests import commands
from tests.converter.inputs.remote.hub_server import HubServer, hub_server
from tests.converter.test_convert import decoded, manifest


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


def test_what_the_hub_refuses_is_said_in_a_sentence(near: Any) -> None:
    for part, says in {
        "nothing": "the Hub has no data set 'me/nothing', or it is private: check the name",
        "notes@v9": "hf://datasets/me/notes@v9: there is no revision 'v9'",
        "closed": "is gated: accept its terms at https://huggingface.co/datasets/me/closed",
    }.items():
        with pytest.raises(InputError, match=says) as refused:
            find_inputs(f"hf://datasets/me/{part}")
        assert "hf_wrong" not in str(refused.value)
    near.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="hf://datasets/me/notes cannot be read: ") as refused:
        find_inputs("hf://datasets/me/notes")
    assert "hf download me/notes --repo-type dataset --local-dir notes" in str(refused.value)


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as refused:
        find_inputs("hf://datasets/me/notes@v2/data")
    assert str(refused.value) == (
        "hf://datasets/me/notes@v2/data is on the Hugging Face Hub: pip install huggingface_hub "
        "and run the same again, or download it (hf download me/notes --repo-type dataset "
        "--revision v2 --local-dir notes) and give the folder notes"
    )


def test_names_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("hf://me/model", "hf://datasets/me", "hf://spaces/me/it"):
        with pytest.raises(InputError, match="expected hf://datasets/USER/NAME, perhaps with"):
            find_inputs(url)
    with pytest.raises(
        InputError, match=r"; the data set of the .* Hub is hf://datasets/me/notes$"
    ):
        find_inputs("me/notes")


def chosen(path: str, *names: str) -> list[str]:
    url = f"hf://datasets/me/it/{path}" if path else "hf://datasets/me/it"
    return _chosen(_Repo(url, "me/it", None, path), names)


def test_which_files_are_data() -> None:
    names = (
        "README.md",
        ".x/a.jsonl",
        "a.parquet",
        "b/c.jsonl.gz",
        "config.json",
        "d.json",
        "e.txt",
        "g.png",
    )
    assert chosen("", *names) == ["a.parquet", "b/c.jsonl.gz"]
    assert chosen("b", *names) == ["b/c.jsonl.gz"]
    assert chosen("e.txt", *names) == ["e.txt"]
    assert chosen("**/*.json", *names) == ["config.json", "d.json"]
    assert chosen("", "README.md", "d.json", "dataset_info.json") == ["d.json"]
    for path, said in {
        "g.png": r"hf://datasets/me/it/g\.png: unsupported file type",
        "*.p*": r"hf://datasets/me/it/g\.png: unsupported file type",
        "*.bin": "no file of the data set matches this glob",
        "f": "has no such file or folder; it has README.md, .x/a.jsonl",
        ".x": r"hf://datasets/me/it/\.x holds no data file that is read; it has \.x/a\.jsonl",
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


def test_signed_addresses_are_not_shown() -> None:
    error = OSError("403 for url 'https://cdn/x?Signature=abc&Key=1'\nmore")
    assert _said(error) == "403 for url 'https://cdn/x?…'"
