"""To add a layout is one entry in its registry: configs and commands take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxdata.cli import main
from jaxdata.feed.layouts import LAYOUTS
from jaxdata.rows.table import Batch
from jaxdata.testing import distinct_documents, write_dataset


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([5, 9, 2, 30])})
    (tmp_path / "c.yaml").write_text(f"dataset: {tmp_path / 'd'}\npack: {{seq_len: 8}}\n")
    return ["--config", str(tmp_path / "c.yaml")]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


def test_a_layout(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def toy(batch: Batch) -> Batch:
        return {"tokens": batch["inputs"]}

    chosen = [*arguments, "--loader.layout", "toy"]
    assert "or 'megatron', got 'toy'" in run(capsys, "preview", *chosen)[1]
    monkeypatch.setitem(LAYOUTS, "toy", toy)
    assert run(capsys, "preview", *chosen)[0] == 0
