"""What one client says to a real server of each kind, and what it makes of the answers."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata import tokenizers
from jaxdata.base.errors import DatasetError, InputError, JaxdataError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.dataset.manifest import read_manifest
from jaxdata.storage import client, open_store, remote
from jaxdata.storage.credentials import ENDPOINTS, credentials_of, service_of, settings_of
from jaxdata.storage.small_files import read_small, write_small
from tests.storage.buckets.conftest import served, use
from tests.storage.servers import BucketServer, Faults, Scheme, Served, bucket_server

NAME = "deep/a b+ü%20&<.bin"
PIECE = 1000
Patch = pytest.MonkeyPatch


def test_ranges_are_asked_for_and_lists_have_several_pages(each_server: BucketServer) -> None:
    store = open_store(each_server.url("bkt/ds"))
    store.write(NAME, b"0123456789")
    each_server.clear()
    zero = np.array([0])
    assert store.gather([NAME], zero, zero + 2, zero + 5).join() == b"234"
    (asked,) = each_server.requests
    assert asked == Served("GET", f"bkt/ds/{NAME}", "bytes=2-4", 206, 3)
    names = [f"many/{number:04}" for number in range(1_001)] + [NAME, "z"]
    for name in ("dsx", *(f"ds/{name}" for name in names)):
        each_server.write(f"bkt/{name}", b"")
    each_server.clear()
    assert (store.list(), each_server.counts.requests) == (sorted(names), 2)
    assert store.list("many/100") == ["many/1000"]
    each_server.faults = Faults(unavailable=0.3, seed=5)
    store.delete("many/")
    assert store.list() == [NAME, "z"]


def test_a_scan_gives_one_version_a_few_pieces_at_a_time_whatever_fails(
    each_server: BucketServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(remote, "_PIECE", PIECE)
    store = open_store(each_server.url("bkt/deep"))
    for size in (0, 7 * PIECE + 1):
        data = os.urandom(size)
        each_server.write("bkt/deep/a", data)
        each_server.clear()
        assert b"".join(store.scan("a")) == data
        assert each_server.counts.sent == size, "no byte is sent twice"
    data = os.urandom(50 * PIECE)
    each_server.write("bkt/deep/a", data)
    each_server.clear()
    pieces_ = store.scan("a")
    next(pieces_)
    assert each_server.counts.requests <= 5
    each_server.faults = Faults(unavailable=0.1, reset=0.1, cut=0.1)
    assert b"".join(store.scan("a")) == data
    each_server.faults = ()
    each_server.write("bkt/deep/a", data[::-1])
    with pytest.raises(DatasetError, match=r"\w+://bkt/deep/a changed while it was read"):
        list(pieces_)
    with pytest.raises(DatasetError, match=r"\w+://bkt/deep/none is missing"):
        list(store.scan("none"))


def test_a_large_file_is_written_in_parts_behind_the_fence(
    each_server: BucketServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(client, "MOST_WHOLE", PIECE)
    monkeypatch.setattr(client, "_PART", 5 * 2**20)  # the least that Amazon takes
    data, calls = os.urandom(11 * 2**20), []
    store = open_store(each_server.url("bkt"))

    def write(fence: Any, name: str) -> None:
        with store.fenced(fence).create(name) as path:
            path.write_bytes(data)

    write(lambda: calls.append(each_server.names()), "a")
    assert each_server.read("bkt/a") == data
    assert [each.method for each in each_server.requests].count("PUT") == 3
    assert calls == [[]], "the fence is asked before the object appears"

    def lost() -> None:
        raise DatasetError("another process took over")

    with pytest.raises(DatasetError, match="another process took over"):
        write(lost, "b")
    assert each_server.names() == ["bkt/a"]


def test_no_right_to_write_is_said(each_server: BucketServer) -> None:
    each_server.faults = Faults(forbidden=1.0, methods="PUT POST DELETE")
    store = open_store(each_server.url("bkt"))
    each_server.write("bkt/b/c", b"")
    for change in (lambda: store.update("b/c", lambda _: b""), lambda: store.delete("b/")):
        with pytest.raises(DatasetError, match=r"bkt/b/c cannot be written: .* may not write it"):
            change()


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_that_is_not_there_is_called_that(scheme: Scheme, monkeypatch: Patch) -> None:
    with bucket_server(scheme, buckets=["bkt"]) as server:
        use(server, monkeypatch)
        there, wrong = server.url("bkt/ds"), server.url("nobkt/ds")
        with pytest.raises(DatasetError, match=f"{there} is not a dataset: it has no dataset.json"):
            read_manifest(open_store(there))
        assert open_store(there).list() == []
        store = open_store(wrong)
        for ask in (
            lambda: read_manifest(store),
            store.list,
            lambda: store.fenced(lambda: None).write("a", b""),
            lambda: read_small(f"{wrong}/run.yaml"),
            lambda: find_inputs([f"{wrong}/a.jsonl"]),
        ):
            said = f"There is no bucket {scheme}://nobkt, or .*: che"
            with pytest.raises(JaxdataError, match=said):
                ask()
        assert server.counts.requests < 40, "nobody asked again and again"


PROFILES = """
[default]
aws_access_key_id = one
aws_secret_access_key = two
[mine]
aws_access_key_id = one
aws_secret_access_key = two
"""


@pytest.fixture
def no_aws(monkeypatch: Patch, tmp_path: Path) -> Path:
    """No variable of AWS, and a home without its files; returns where that of keys would be."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "AWS_SHARED_CREDENTIALS_FILE"


def test_credentials_are_those_of_the_first_place_that_has_some(
    no_aws: Path, monkeypatch: Patch, tmp_path: Path
) -> None:
    found = credentials_of("s3://bkt/ds")
    assert found.words.startswith("This machine's own role, or nobody (no key is set: AWS_ACCESS")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/role")
    assert credentials_of("s3://bkt") == ("The role of this container", {})
    (tmp_path / "AWS_CONFIG_FILE").write_text("[profile mine]\nsso_session = work\nregion = far\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(InputError, match=r"AWS_PROFILE=mine: .* export-credentials --profile mine"):
        credentials_of("s3://bkt")
    no_aws.write_text(PROFILES)
    found = credentials_of("s3://bkt")
    assert found.words == f"The profile 'mine' (AWS_PROFILE) of {no_aws}"
    keys = {"region": "far", "access_key_id": "one", "secret_access_key": "two"}
    assert found.config == settings_of("s3://bkt") == keys
    monkeypatch.setenv("AWS_PROFILE", "yours")
    with pytest.raises(InputError, match=r"AWS_PROFILE=yours: there is no such profile .* in /.*F"):
        credentials_of("s3://bkt")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert credentials_of("s3://bkt") == ("The key in AWS_ACCESS_KEY_ID", {})
    monkeypatch.setenv("JAXDATA_S3_ANONYMOUS", "1")
    assert credentials_of("s3://bkt").config == {"skip_signature": True}
    settings = {"skip_signature": True, "region": "us-east-1"}
    for name in reversed(ENDPOINTS):  # the first that is set counts
        monkeypatch.setenv(name, f"http://{name}:9000/")
        assert settings_of("s3://bkt") == settings | {"endpoint": f"http://{name}:9000"}


def test_a_container_of_azure_is_asked_with_its_account(monkeypatch: Patch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "team")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setattr(client, "_stores", {})
    opened, name = client._opened("az://box/ds/a b.bin")
    assert (type(opened).__name__, name) == ("AzureStore", "ds/a b.bin")
    assert (opened.config["container_name"], opened.config["account_name"]) == ("box", "team")
    service = "https://team.blob.core.windows.net (AZURE_STORAGE_ACCOUNT_NAME)"
    assert service_of("az://box") == service
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT_NAME is not set"):
        open_store("az://box/ds").read("a")


WRONG = [
    (ENDPOINTS[1], "minio:9000", "expected the URL of a service, like https://minio"),
    ("TENSORSTORE_GCS_HTTP_URL", "minio:9000", "expected the URL of a service, like https"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/none.json", "there is no such file: name the"),
]


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_what_the_environment_says_wrongly_is_refused(
    name: str, value: str, said: str, monkeypatch: Patch
) -> None:
    url = f"{'s3' if 'S3' in name else 'gs'}://a-bucket-that-no-test-has-opened/ds"
    monkeypatch.setenv(name, value)
    for ask in (lambda: open_store(url).read("a"), lambda: find_inputs([f"{url}/a.txt"])):
        with pytest.raises(InputError, match=re.escape(f"{name}={value}: {said}")):
            ask()


def test_small_files_and_tokenizers_are_alike_anywhere(monkeypatch: Patch, tmp_path: Path) -> None:
    ids = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    files = {"vocab.json": json.dumps(ids).encode(), "merges.txt": b"#version: 0.2\na b\n"}
    for small in served("s3", monkeypatch):
        for given in (small.url("small/deep/a"), tmp_path / "b/a", f"file://{tmp_path}/c/a"):
            write_small(given, b"content")
            assert read_small(given) == b"content"
        for given in (small.url("small/none"), tmp_path / "none"):
            with pytest.raises(FileNotFoundError):
                read_small(given)
        with pytest.raises(InputError, match="https://host/a: nothing is written to web servers"):
            write_small("https://host/a", b"")
        with pytest.raises(InputError, match=r"^s3://small/none: there is no such object, nor any"):
            tokenizers.load("hf:s3://small/none")
        for name, data in {**files, "weights.safetensors": bytes(99)}.items():
            small.write(f"small/gpt2/{name}", data)
        small.clear()
        pytest.importorskip("tokenizers", reason="needs jaxdata[hf]")
        folder = tokenizers.load("gpt2:s3://small/gpt2")
        assert not [each for each in small.requests if "weights" in each.object]
        assert folder.encode(["ab"])[0].tolist() == [3]
        named = tokenizers.load("gpt2:s3://small/gpt2/merges.txt,s3://small/gpt2/vocab.json")
        assert named.files() == folder.files()
