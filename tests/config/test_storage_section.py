"""The section `storage`: what it sets, what the environment sets instead, and what it refuses."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import ConfigError, warn_once
from jaxdata.config import config_fields, load, load_config
from jaxdata.config.config_fields import VARIABLES, StorageSection, use_storage
from tests.builders import dataset
from tests.storage.servers import bucket_process

NAMES = {name for names in VARIABLES.values() for name in names}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None of the variables is set, nor by a config before."""
    monkeypatch.setattr(config_fields, "_ours", {})
    warn_once.cache_clear()
    with mock.patch.dict(os.environ):
        for name in NAMES:
            os.environ.pop(name, None)
        yield


def use(**storage: Any) -> None:
    use_storage(load_config({"dataset": "d", "storage": storage}).storage)


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in sorted(NAMES & os.environ.keys())}


def test_every_field_sets_its_variable() -> None:
    s3 = {"endpoint": "http://minio:9000", "region": "here", "profile": "team"}
    gs = {"endpoint": "http://gcs:1", "credentials_file": "/keys/a.json"}
    use(s3=s3, gs=gs, cache={"folder": "/mnt/cache", "bytes": 2e11}, seconds=90)
    set_ = {"AWS_ENDPOINT_URL_S3": "http://minio:9000", "AWS_PROFILE": "team", "AWS_REGION": "here"}
    set_ |= {"GOOGLE_APPLICATION_CREDENTIALS": "/keys/a.json"}
    set_ |= {"TENSORSTORE_GCS_HTTP_URL": "http://gcs:1", "JAXDATA_STORAGE_SECONDS": "90.0"}
    set_ |= {"JAXDATA_CACHE": "/mnt/cache", "JAXDATA_CACHE_BYTES": "200000000000"}
    assert environment() == set_
    use(s3={"anonymous": True})  # the last config counts
    assert environment() == {"JAXDATA_S3_ANONYMOUS": "1"}
    use_storage(StorageSection())
    assert environment() == {"JAXDATA_S3_ANONYMOUS": "1"}, "nothing said, nothing changed"


@pytest.mark.parametrize("field", VARIABLES)
def test_the_environment_wins(field: str, monkeypatch: Any, caplog: Any) -> None:
    *_, variable = VARIABLES[field]
    given: dict[str, Any] = {"s3.anonymous": True, "cache.bytes": 5, "seconds": 5}
    value = given.get(field, "http://config")
    monkeypatch.setenv(variable, "of this machine")
    with caplog.at_level(logging.WARNING, "jaxdata"):
        for _ in range(2):
            use_storage(load_config({"dataset": "d"}, {f"storage.{field}": value}).storage)
    assert environment() == {variable: "of this machine"}
    wins = f"{variable} is set, which wins"
    assert caplog.messages == [f"storage.{field} of the config is not used: {wins}"]


SECRET = "'secret_access_key' is a secret, and a config holds none. For s3://, set "
SECRET += "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or name a profile"


REFUSED: list[Any] = [
    ("s3: {secret_access_key: hush}", f"storage.s3: {SECRET}"),
    ("s3: {AWS_SESSION_TOKEN: hush}", "storage.s3: 'AWS_SESSION_TOKEN' is a secret"),
    ("access_key_id: hush", "storage: 'access_key_id' is a secret"),
    ("s3: {endpoint: 'http://me:hush@host'}", "write the URL without what is before the @"),
    ("s3: {endpoint: minio}", "storage.s3.endpoint: expected the URL of a service, like"),
    ("s3: {profile: a, anonymous: true}", "storage.s3: profile and anonymous exclude each"),
]


@pytest.mark.parametrize(("storage", "message"), REFUSED)
def test_what_is_refused(storage: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"dataset: d\nstorage: {{{storage}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert f"({path}, line 2)" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_run_and_its_workers_read_the_bucket_that_its_config_names(tmp_path: Path) -> None:
    dataset(tmp_path / "bkt/ds", {"web": [89] * 40})
    pages = tmp_path / "pages"
    with bucket_process("s3", tmp_path) as server:
        s3 = {"endpoint": server.env["AWS_ENDPOINT_URL"], "anonymous": True}
        config = {"dataset": "s3://bkt/ds", "loader": {"batch_size": 4, "num_workers": 1}}
        config |= {"storage": {"s3": s3, "cache": {"folder": str(pages)}}, "pack": {"seq_len": 64}}
        loader = load(config)
        inputs = [batch["inputs"] for batch in loader]
        loader.close()
    near = load(config | {"dataset": str(tmp_path / "bkt/ds")})
    assert all((a == b["inputs"]).all() for a, b in zip(inputs, near, strict=True))
    assert [*pages.rglob("*-*")]
