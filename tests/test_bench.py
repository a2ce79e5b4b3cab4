"""Every benchmark runs on a tiny corpus and prints what it should; figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "tools" / "bench"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py") if "__main__" in file.read_text())
KEYS = {"bench", "question", "name", "unit", "better", "median", "min", "max", "rounds", "facts"}


def run(name: str, folder: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--data", str(folder)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny corpora, made by the first script that needs them."""
    return tmp_path_factory.mktemp("bench")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_prints_json_lines(name: str, corpora: Path) -> None:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in run(name, corpora, "--json").splitlines()
    ]
    assert lines
    for line in lines:
        assert line.keys() >= KEYS
        assert line["bench"] == name
        assert line["min"] <= line["median"] <= line["max"]
        if "ratio" in line:
            assert line["ratio"] > 0
            assert line["against"] in {other["name"] for other in lines}
