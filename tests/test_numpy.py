"""The golden rows on other versions of numpy: the lowest and the highest that are admitted.

`JAXDATA_TEST_PYTHONS` names interpreters in which jaxdata is installed with them, `:` between.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PYTHONS = list(filter(None, os.environ.get("JAXDATA_TEST_PYTHONS", "").split(":")))
TESTS = ("test_golden.py", "base/test_seeds.py", "feed/test_schedule.py")


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS or [None])
def test_golden_rows_on_another_numpy(python: str | None) -> None:
    if python is None:
        pytest.skip("no interpreters with other versions of numpy (set JAXDATA_TEST_PYTHONS)")
    tests = [str(Path(__file__).parent / name) for name in TESTS]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
