"""Which credentials s3:// is asked with, and that the client is silent about the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdata.errors import InputError
from jaxdata.format.storage.credentials import ENDPOINTS, credentials_of
from jaxdata.format.storage.kvstores import kvstore_spec, open_kvstore
from jaxdata.format.storage.objects.bucket import open_bucket
from jaxdata.format.storage.objects.bucket_settings import settings_of
from jaxdata.testing.buckets import bucket_server

PROFILES = """
[default]
aws_access_key_id = one
aws_secret_access_key = two
[mine]
aws_access_key_id = one
aws_secret_access_key = two
"""


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of AWS, and a home without its files."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_nothing_is_set() -> None:
    found = credentials_of("s3://bkt/ds")
    assert found.spec is None
    assert found.words.startswith("This machine's own role, or nobody (no key is set: AWS_ACCESS")


def test_the_environment_comes_before_profiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(PROFILES)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    file = tmp_path / "AWS_SHARED_CREDENTIALS_FILE"
    found = credentials_of("s3://bkt")
    assert found.words == f"The profile 'mine' (AWS_PROFILE) of {file}"
    assert found.spec is not None
    assert (found.spec["type"], found.spec["profile"]) == ("profile", "mine")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert credentials_of("s3://bkt").spec == {"type": "environment"}
    monkeypatch.setenv("JAXDATA_S3_ANONYMOUS", "1")
    assert credentials_of("s3://bkt").spec == {"type": "anonymous"}


def test_a_profile_in_the_config_file_that_is_no_key_is_left_to_the_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "AWS_CONFIG_FILE").write_text("[profile mine]\nsso_session = work\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert credentials_of("s3://bkt").spec == {"type": "default", "profile": "mine"}


def test_a_profile_that_is_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(PROFILES)
    monkeypatch.setenv("AWS_PROFILE", "yours")
    with pytest.raises(InputError, match=r"AWS_PROFILE=yours: there is no such profile in /.*FILE"):
        credentials_of("s3://bkt")


def test_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/role")
    assert credentials_of("s3://bkt").spec == {"type": "ecs"}


@pytest.mark.parametrize("way", ["key", "profile", "default profile", "anonymous"])
def test_the_client_says_nothing(way: str, tmp_path: Path) -> None:
    with bucket_server("s3", buckets=["bkt"]) as server:
        server.write("bkt/a", b"content")
        env = os.environ | server.env
        if way != "key":
            env = {k: v for k, v in env.items() if not re.match("AWS_(ACCESS|SECRET)", k)}
        if way == "anonymous":
            env["JAXDATA_S3_ANONYMOUS"] = "1"
        elif way.endswith("profile"):
            (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(PROFILES)
            env |= {"AWS_PROFILE": "mine"} if way == "profile" else {}
        code = (
            "from jaxdata.format.storage import open_store\n"
            "for _ in range(2): print(open_store('s3://bkt').read('a'))"
        )
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "b'content'\n" * 2, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("first", range(len(ENDPOINTS)))
def test_the_first_variable_that_names_a_service_counts(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENDPOINTS == ("AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
    for name in ENDPOINTS[first:]:
        monkeypatch.setenv(name, f"http://{name.lower()}/")
    expected = f"http://{ENDPOINTS[first].lower()}"
    assert kvstore_spec("s3://bkt/ds")["endpoint"] == expected
    assert settings_of("s3", "bkt")["config"]["endpoint"] == expected


@pytest.mark.parametrize("name", [*ENDPOINTS, "TENSORSTORE_GCS_HTTP_URL"])
def test_a_service_that_is_no_url(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = "gs" if "GCS" in name else "s3"
    monkeypatch.setenv(name, "minio:9000")
    said = f"{name}=minio:9000: expected the URL of a service, like https://minio"
    for opened in (kvstore_spec, open_bucket):
        with pytest.raises(InputError, match=said):
            opened(f"{scheme}://bkt/ds")


def test_a_file_of_google_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")
    said = rf"GOOGLE_APPLICATION_CREDENTIALS={tmp_path}/none\.json: there is no such file: name the"
    for opened in (open_kvstore, open_bucket):
        with pytest.raises(InputError, match=said):
            opened("gs://a-bucket-that-no-test-has-opened/ds")
    (tmp_path / "none.json").touch()
    assert kvstore_spec("gs://bkt") == "gs://bkt/"


def test_inputs_are_read_with_the_same_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert "skip_signature" not in settings_of("s3", "bkt")["config"]
    monkeypatch.setenv("JAXDATA_S3_ANONYMOUS", "1")
    assert settings_of("s3", "bkt")["config"]["skip_signature"] is True
