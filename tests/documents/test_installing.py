"""The command that brings an extra: of the jaxdata that is installed, wherever it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxdata.errors import MissingExtra
from jaxdata.installing import install_command

WHEEL = "https://example.org/jaxdata-1.0-py3-none-any.whl"


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    """Have jaxdata's metadata say that it came from a URL; None: from an index."""
    folder = tmp_path / "jaxdata-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxdata\nVersion: 1.0\n")
    if url is not None:
        (folder / "direct_url.json").write_text(json.dumps({"url": url}))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, None)
    assert install_command("hf") == "pip install 'jaxdata[hf]'"
    assert str(MissingExtra("hf", "tokenizers")) == (
        "tokenizers is not installed; install it with: pip install 'jaxdata[hf]'"
    )


def test_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    installed(tmp_path, monkeypatch, checkout.as_uri())
    assert install_command("hf") == f"pip install '{checkout}[hf]'"


def test_from_an_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, WHEEL)
    assert install_command("hf") == f"pip install 'jaxdata[hf] @ {WHEEL}'"
