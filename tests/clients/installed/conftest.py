"""What trainers of other people's leave behind is theirs."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.clients.installed.promises")


@pytest.fixture(scope="session", autouse=True)
def _leftovers() -> Any:
    return SimpleNamespace(note=lambda _: None)
