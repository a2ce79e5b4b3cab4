"""What type checkers know of the public face: a wrong name of a strategy or a mode is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from jaxdata.feed.layouts import LAYOUTS
from jaxdata.rows.packing.block_plan import StrategyName
from jaxdata.rows.packing.settings import PositionsName
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import POSITIONS, Row

RIGHT = """
import jax
import numpy as np
import jaxdata
from jaxdata.rows.table import Row

docs = jaxdata.ArrayDocuments([[1, 2, 0]])
rows = jaxdata.pack(docs, seq_len=2, strategy="concat", positions="row")
first: Row = rows[0]
mixed = jaxdata.mix({"web": rows}, on_exhaustion="halt")
loader: jaxdata.Loader[Row[jax.Array]] = jaxdata.Loader(mixed, batch_size=8, expand="host")
print(next(loader)["inputs"].sum(), first["targets"])


def pair(batch: dict[str, np.ndarray]) -> tuple[int, int]:
    return len(batch), 0


number, zero = next(jaxdata.Loader(rows, batch_size=1, layout=pair))
print(number + zero)
"""
WRONG = {
    'jaxdata.pack(docs, seq_len=2, strategy="bestfit")': "bestfit",
    'jaxdata.pack(docs, seq_len=2, overlap="1")': "overlap",
    'jaxdata.mix({"web": rows}, on_exhaustion="stop")': "on_exhaustion",
    'rows[0]["inptus"]': "inptus",
}


@pytest.mark.exhaustive
def test_a_type_checker_knows_the_public_face(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    command = ["mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]

    def checked(text: str) -> tuple[int, list[str]]:
        file.write_text(text)
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    code, said = checked(RIGHT)
    assert code == 0, said
    code, said = checked(RIGHT + "\n".join(WRONG))
    assert code == 1
    for line, what in enumerate(WRONG.values(), start=len(RIGHT.splitlines()) + 1):
        errors = [each for each in said if f"example.py:{line}:" in each]
        assert what in " ".join(errors), f"line {line} is no error: {what}"


def test_literals_name_what_is_registered() -> None:
    assert set(get_args(StrategyName)) == set(STRATEGIES)
    assert get_args(PositionsName) == POSITIONS
    assert set(Row.__annotations__) == set(LAYOUTS["jaxdata"](dict.fromkeys(Row.__annotations__)))
