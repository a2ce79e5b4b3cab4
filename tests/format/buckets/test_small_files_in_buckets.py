"""Configs, tokenizers, lists: small files behind URLs, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import main
from jaxdata.compat.cerebras import read_params
from jaxdata.config import load_config
from jaxdata.converter.chat.templates import find_template
from jaxdata.errors import ConfigError, InputError
from jaxdata.format.storage.small_files import read_small, write_small
from jaxdata.look.states import read_state
from jaxdata.testing.buckets import BucketServer, bucket_server
from tests.format.buckets.conftest import use


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        yield server


@pytest.fixture
def bucket(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    use(server, monkeypatch)
    return server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.model"
    tokenizers.train(["some words to learn " * 50], path, vocab_size=280)
    return path


def test_small_files_are_the_same_anywhere(bucket: BucketServer, tmp_path: Path) -> None:
    for given in (bucket.url("small/deep/a"), tmp_path / "b/a", f"file://{tmp_path}/c/a"):
        write_small(given, b"content")
        assert read_small(given) == b"content"
    for given in (bucket.url("small/none"), tmp_path / "none"):
        with pytest.raises(FileNotFoundError):
            read_small(given)
    with pytest.raises(InputError, match="https://host/a: nothing is written to web servers"):
        write_small("https://host/a", b"")


def test_a_config_in_a_bucket(bucket: BucketServer) -> None:
    bucket.write("small/run.yaml", b"dataset: s3://b/data\npack: {seq_len: 64}\n")
    url = bucket.url("small/run.yaml")
    assert load_config(url, {"seed": 3}).pack.seq_len == 64
    bucket.write("small/run.yaml", b"dataset: d\npack: {seq_length: 64}\n")
    with pytest.raises(ConfigError, match=r"did you mean 'seq_len'.*s3://small/run\.yaml, line 2"):
        load_config(url)
    with pytest.raises(ConfigError, match=r"cannot read the config s3://small/none: .*no such obj"):
        load_config("s3://small/none")


def test_parameters_and_templates_in_a_bucket(bucket: BucketServer) -> None:
    bucket.write("small/params.yaml", b"processing: {max_seq_length: 128}\n")
    with pytest.raises(InputError, match=r"^s3://small/params\.yaml: tokenizer_type=None"):
        read_params("s3://small/params.yaml", "lm")
    bucket.write("small/template", b"{{ messages }}")
    assert find_template("s3://small/template", tokenizers.load("bytes")) == "{{ messages }}"
    with pytest.raises(InputError, match="--chat-template 's3://small/none' cannot be read"):
        find_template("s3://small/none", tokenizers.load("bytes"))


def test_a_tokenizer_in_a_bucket(bucket: BucketServer, model: Path) -> None:
    bucket.write("small/tok/small.model", model.read_bytes())
    local = tokenizers.load(f"sentencepiece:{model}")
    remote = tokenizers.load("sentencepiece:s3://small/tok/small.model")
    assert (remote.name, remote.files()) == (local.name, local.files())
    with pytest.raises(InputError, match=r"^s3://small/none: there is no such object, nor any be"):
        tokenizers.load("hf:s3://small/none")
    tokenizers.train(["some words to learn " * 50], "s3://small/made.model", vocab_size=280)
    assert bucket.read("small/made.model") == model.read_bytes()


def test_a_tokenizer_of_several_files_in_a_bucket(bucket: BucketServer, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs jaxdata[hf]")
    ids = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    files = {"vocab.json": json.dumps(ids).encode(), "merges.txt": b"#version: 0.2\na b\n"}
    for name, data in files.items():
        bucket.write(f"small/gpt2/{name}", data)
        (tmp_path / name).write_bytes(data)
    bucket.write("small/gpt2/weights.safetensors", bytes(99))
    bucket.clear()
    folder = tokenizers.load("gpt2:s3://small/gpt2")
    assert not [each for each in bucket.requests if "weights" in each.object]
    named = tokenizers.load("gpt2:s3://small/gpt2/merges.txt,s3://small/gpt2/vocab.json")
    local = tokenizers.load(f"gpt2:{tmp_path}")
    assert folder.encode(["ab"])[0].tolist() == local.encode(["ab"])[0].tolist()
    assert named.files() == local.files()
    tokenizer_json = local.files()["tokenizer.json"]
    bucket.write("small/hf/tokenizer.json", tokenizer_json)
    for spec in ("hf:s3://small/hf", "hf:s3://small/hf/", "hf:s3://small/hf/tokenizer.json"):
        assert tokenizers.load(spec, eod="<|endoftext|>").vocab_size == 4


def test_what_has_to_be_on_this_machine_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "gs://bucket/a"
    expected = re.escape(f"{url!r} is a URL, expected a path on this machine: ")
    with pytest.raises(InputError, match="a path on this machine: train into a folder, gs:"):
        load_config({"dataset": "d", "train": {"output": "https://host/run"}})
    with pytest.raises(InputError, match=f"{expected}copy the checkpoint"):
        read_state(url)
    with pytest.raises(SystemExit):
        main(["demo", "--output", url])
    assert re.search(f"{expected}run the demo in a folder", capsys.readouterr().err)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match="cannot open 'https://host/ds'"):
        jaxdata.convert(tmp_path, output="https://host/ds", source="a", tokenizer="bytes")
