"""A service other than Amazon's, which the environment names: our server of S3, and moto's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxdata.testing.buckets import bucket_server


@pytest.fixture(scope="module", params=["ours", "moto"])
def service(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment in which s3:// leads to the server; it has a bucket `bkt`."""
    if request.param == "ours":
        with bucket_server("s3", buckets=["bkt"]) as server:
            yield os.environ | server.env
        return
    reason = "needs moto[s3,server], another S3 server for tests"
    moto = pytest.importorskip("moto.server", reason=reason)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/bkt", method="PUT")).close()
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    yield {**os.environ, **keys, "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}
    server.stop()


def run(service: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jaxdata", *words], env=service, capture_output=True, text=True
    )


def test_a_dataset_is_written_and_read(service: dict[str, str], tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"document {k} " * 9}) for k in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    convert = ["convert", str(tmp_path / "a.jsonl"), "--source", "web", "--tokenizer", "bytes"]
    for output in ("s3://bkt/deep/ds", str(tmp_path / "ds")):
        done = run(service, *convert, "--output", output)
        assert done.returncode == 0, done.stderr
        assert "AWS_ERROR" not in done.stderr, "the client's noise"
    assert "s3://bkt/deep/ds: whole (1 sources" in run(service, "verify", "s3://bkt/deep/ds").stdout
    code = (
        "import jaxdata, sys, zlib\n"
        "docs = jaxdata.open_dataset(sys.argv[1]).source('train', 'web')\n"
        "loader = jaxdata.Loader(jaxdata.pack(docs, seq_len=64), batch_size=4)\n"
        "print([zlib.crc32(batch['inputs'].tobytes()) for batch in loader])"
    )
    batches = [
        subprocess.check_output([sys.executable, "-c", code, url], env=service)
        for url in ("s3://bkt/deep/ds", str(tmp_path / "ds"))
    ]
    assert batches[0] == batches[1]


def test_a_name_that_no_bucket_has(service: dict[str, str]) -> None:
    done = run(service, "inspect", "s3://No_Bucket!/ds")
    assert done.returncode == 1
    expected = 's3://No_Bucket!/ds cannot be opened: Invalid S3 bucket name: "No_Bucket!"'
    assert done.stderr.splitlines()[-1] == f"error: {expected}"
