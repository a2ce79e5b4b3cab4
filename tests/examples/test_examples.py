"""The examples of `tools/examples`, run as a user runs them; resumed runs go on to the bit."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import jaxdata
from tests.conftest import ROOT, xla_flags

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "tools/examples"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "XLA_FLAGS": xla_flags(2),
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def losses(example: str, *arguments: object, cwd: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{example}.py", *map(str, arguments)],
        capture_output=True,
        cwd=cwd,
        env=ENVIRONMENT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step \d+  loss .*$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for source in ("rows", "feed"):
        texts = [path.read_text() for path in sorted((ROOT / "jaxdata" / source).glob("*.py"))]
        file = folder / f"{source}.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        jaxdata.convert(file, output=folder / "d", source=source, tokenizer="bytes", workers=1)
    return folder / "d"


@pytest.mark.exhaustive
@pytest.mark.parametrize("example", ["jax_loop", "torch_loop", "hf_trainer", "odm", "doremi"])
def test_a_stopped_loop_goes_on_to_the_same_losses(
    example: str, dataset: Path, tmp_path: Path
) -> None:
    named = {"odm": "{}.npz", "doremi": "{}.npz"}.get(example, "{}").format
    whole = losses(example, dataset, named("whole"), 6, cwd=tmp_path)
    assert [int(line.split()[1]) for line in whole] == list(range(6))
    broken = losses(example, dataset, named("broken"), 3, cwd=tmp_path)
    assert broken == whole[:3]
    resumed = losses(example, dataset, named("broken"), 6, cwd=tmp_path)
    assert resumed[-3:] == whole[3:]


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vocabulary: a large one makes the loss of a tiny model slow."""
    folder = tmp_path_factory.mktemp("tokenizer")
    with (shared_data / "instruct/gsm8k_train.jsonl").open() as lines:
        texts = [json.loads(line)["question"] for line in islice(lines, 400)]
    jaxdata.tokenizers.train_byte_level(texts, folder, vocab_size=512)
    return folder / "tokenizer.json"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("example", "data", "first"),
    [("sft", "gsm8k_train.jsonl", math.log(512)), ("dpo", "dpo_en_demo.json", math.log(2))],
)
def test_tuning_goes_from_a_file_to_a_trained_model(
    example: str, data: str, first: float, tokenizer: Path, shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "instruct" / data
    found = losses(example, file, tokenizer, tmp_path / "run", 2, cwd=tmp_path)
    assert len(found) == 2
    assert float(found[0].split()[3]) == pytest.approx(first, rel=0.05)
