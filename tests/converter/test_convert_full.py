"""Conversions onto a disk that is full: a small tmpfs, in a mount namespace of the test's own."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.format.trees import tree

pytestmark = pytest.mark.slow

SCRIPT = """
mount -t tmpfs -o size={size}k none {disk} || exit 99
{convert} 2> {errors}
echo $? > {status}
find {disk} -type f > {left}
mount -o remount,size=64m none {disk}
{convert} --resume && cp -r {disk}/out {finished}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(1)
    file = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    texts = ("words " * chance.randrange(100) for _ in range(2_000))
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "{bad\n")
    return file


def command(corpus: Path, output: Path) -> list[str]:
    convert = [sys.executable, "-m", "jaxdata", "convert", str(corpus), "--output", str(output)]
    options = ["--source", "web", "--tokenizer", "bytes", "--workers", "2"]
    return [*convert, *options, "--unit-bytes", "150000"]


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What comes out where there is room."""
    output = tmp_path_factory.mktemp("whole") / "out"
    subprocess.run(command(corpus, output), check=True, capture_output=True)
    return output


# Full at the first shard, in the middle, and where all shards are there and the index is not.
@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [40, 900, "index"])
def test_a_full_disk_loses_nothing_and_says_so(
    corpus: Path, tmp_path: Path, whole: Path, size: int | str
) -> None:
    if not shutil.which("unshare"):
        pytest.skip("a disk to fill needs util-linux's unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    files = {name: tmp_path / name for name in ("errors", "status", "left", "finished")}
    convert = " ".join(command(corpus, disk / "out"))
    if size == "index":
        # The shards fit, with their receipts and the parameters, in pages of 4 KiB.
        shards = list(whole.rglob("*.array_record"))
        size = sum(shard.stat().st_size for shard in shards) // 1024 + 8 * len(shards) + 8
    script = SCRIPT.format(size=size, disk=disk, convert=convert, **files)
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    if not files["status"].exists():
        pytest.skip(f"this system lets us mount nothing, not even in a namespace: {done.stderr}")
    says = files["errors"].read_text()
    assert files["status"].read_text() == "1\n", says
    assert says.startswith(f"error: {disk}/out cannot be written: No space left on device (")
    assert says.endswith("fix the cause, and the same command resumes\n")
    left = files["left"].read_text().splitlines()
    assert not [name for name in left if ".tmp-" in name or name.endswith("dataset.json")]
    assert done.returncode == 0, done.stderr
    assert tree(files["finished"]) == tree(whole)
