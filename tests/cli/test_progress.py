"""Progress on a terminal: what is drawn, and what is printed meanwhile."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from jaxdata.base.progress import progress_bar, say, status_line

LONG = "step 1/3  a line that is longer than the terminal is wide" + " and on" * 20 + "!"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Gives what stands on the terminal so far, without colours."""
    screen = Terminal()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield lambda: re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


@pytest.fixture(autouse=True)
def of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def begins_a_line(text: str, line: str) -> bool:
    """Whether it stands at the left, where nothing was or what was there is erased."""
    before, found, after = text.partition(line)
    return bool(found) and before.endswith(("\n", "\x1b[2K")) and after.startswith("\n")


def test_a_line_goes_above_the_bar() -> None:
    with terminal() as drawn:
        say("before")
        with progress_bar("training") as advance:
            advance(1, 3)
            say(LONG)
            advance(2, 3)
            print("printed")
        say("after")
    assert drawn().startswith("before\n")
    assert begins_a_line(drawn(), LONG)
    assert begins_a_line(drawn(), "printed")
    assert drawn().endswith("after\n")


def test_a_status_and_a_bar_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxdata.base.progress._PATIENCE", 0.0)
    shown = threading.Event()

    def text() -> str:
        shown.set()
        return "fetching"

    with terminal() as drawn, progress_bar("training") as advance, status_line(text):
        assert shown.wait(60)
        advance(1, 2)
        say("a line")
    assert begins_a_line(drawn(), "a line")
    assert drawn().count("\x1b[?25l") == 1, "one display, not two that overwrite each other"
