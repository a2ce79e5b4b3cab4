"""The command that brings an extra: of the jaxdata that is installed, wherever it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxdata.base.errors import MissingExtra, install_command

WHEEL = "https://example.org/jaxdata-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("url", "command"),
    [
        (None, "pip install 'jaxdata[hf]'"),
        ("file://{}/my%20checkout", "pip install '{}/my checkout[hf]'"),
        (WHEEL, f"pip install 'jaxdata[hf] @ {WHEEL}'"),
    ],
)
def test_an_extra_is_installed_from_where_jaxdata_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, command: str
) -> None:
    folder = tmp_path / "jaxdata-1.0.dist-info"
    folder.mkdir()
    (tmp_path / "my checkout").mkdir()
    command = command.format(tmp_path)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxdata\nVersion: 1.0\n")
    if url is not None:
        (folder / "direct_url.json").write_text(json.dumps({"url": url.format(tmp_path)}))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_command("hf") == command
    said = f"tokenizers is not installed; install it with: {command}"
    assert str(MissingExtra("hf", "tokenizers")) == said
