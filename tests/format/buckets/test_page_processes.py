"""Several processes of a host, and one page cache."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

from jaxdata.testing import assert_same_batches
from jaxdata.testing.buckets import BucketServer
from tests.conftest import ROOT
from tests.format.buckets.test_pages import loader, same, write


def test_workers_fetch_a_page_once_for_all(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    rows = loader(server.url("bkt/ds"), workers=3)
    near = loader(tmp_path / "ds")
    assert_same_batches(islice(rows, len(near)), near)
    pages = [each.range for each in server.requests if each.sent > 400_000]
    assert (
        8 <= len(pages) == len({(each.object) for each in server.requests if each.sent > 400_000})
    )
    reads = rows.report().reads
    assert reads is not None
    assert reads.pages >= 8
    assert reads.hits > reads.misses
    rows.close()


def test_a_second_process_finds_the_pages(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    same(server, tmp_path)
    server.clear()
    code = (
        "import sys; from tests.format.buckets.test_pages import *\n"
        "assert_same_batches(loader(sys.argv[1]), loader(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, server.url("bkt/ds"), str(tmp_path / "ds")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | server.env, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    asked = {each.object for each in server.requests}
    assert not any("/c/" in name or name.endswith("record") for name in asked)
