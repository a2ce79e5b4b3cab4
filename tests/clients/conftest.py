"""Real text as a dataset, for clients to train on."""

import gzip
import sys
import types
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.clients.tiny import config_of
from tests.converter.here import convert_here


@pytest.fixture(scope="session")
def text(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short pages to train on, and code; other code to evaluate on."""
    path = tmp_path_factory.mktemp("text") / "d"
    tokenizer = f"sentencepiece:{shared_data / 'tokenizers/sentencepiece/test_model.model'}"
    parts = {"short": ("pages", "train"), "code-0": ("code", "train"), "code-1": ("code", "val")}
    for name, (source, split) in parts.items():
        few = path.parent / f"{name}.jsonl"
        with gzip.open(shared_data / f"{name}.jsonl.gz", "rt") as lines:
            few.write_text("".join(islice(lines, 120)))
        given = {"source": source, "split": split, "tokenizer": tokenizer}
        convert_here(few, output=path, workers=1, **given)
    return path


@pytest.fixture
def run(text: Path) -> dict[str, Any]:
    """A config: pages and code, mixed and packed."""
    return config_of(text)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Puts a module of a name where imports find it, with the modules above it."""

    def put(name: str, **members: Any) -> types.ModuleType:
        above = ""
        for part in name.split("."):
            above = f"{above}.{part}".lstrip(".")
            if not hasattr(sys.modules.get(above), "stands_in"):
                made = types.ModuleType(above)
                made.stands_in = True  # type: ignore[attr-defined]
                made.__path__ = []
                monkeypatch.setitem(sys.modules, above, made)
        vars(sys.modules[name]).update(members)
        return sys.modules[name]

    return put
