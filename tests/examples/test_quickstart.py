"""The notebook `tools/examples/quickstart.ipynb`: its cells run; its saved outputs are theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from tests.conftest import ROOT

NOTEBOOK = ROOT / "tools/examples/quickstart.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_cells_of_the_notebook_run_in_order(
    cells: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "quickstart"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"train/code: \d+ documents, .*\ntrain/docs: \d+ documents, ", printed)
    assert "from row 8 [(4, 512), (4, 512)]\nthe same: True\n" in printed
    assert len(jaxdata.open_dataset("quickstart-data").names) == 2
    # Row 18 of the run is explained: its text is the batch's, from the module that it names.
    traced = re.findall(r"slots \((\d+), \d+\): (code|docs):(\d+), .*\n    of ([\w.]+) - ", printed)
    assert traced
    assert traced[0][0] == "0"
    for _, source, document, module in traced:
        records = list(names[source]())
        assert records[int(document)]["module"] == module


def test_the_saved_outputs_are_of_one_whole_run_and_name_no_machine(
    cells: list[dict[str, Any]],
) -> None:
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "execute_result"}
    shown = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
    assert len(shown) == 4
    assert all("<" in "".join(data["text/html"]) for data in shown)
    assert not re.search(r"/(home|root|tmp|usr|Users|work)/", NOTEBOOK.read_text())
