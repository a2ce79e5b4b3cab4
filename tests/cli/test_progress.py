"""Progress on a terminal: what is drawn, and what is printed meanwhile."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdata import cli
from jaxdata.base.progress import progress_bar, say, status_line
from jaxdata.cli import train
from jaxdata.config import load_config
from tests import builders
from tests.converter.here import in_this_process

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


def test_a_conversion_has_a_bar(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    where = ["--output", str(tmp_path / "out"), "--source", "web", "--tokenizer", "bytes"]
    with terminal() as drawn, in_this_process():
        assert cli._run(["convert", str(tmp_path / "a.txt"), *where]) == 0
    assert "converting" in drawn()


def test_a_bar_says_no_count_before_it_knows_one() -> None:
    with terminal() as drawn, progress_bar("training") as advance:
        with progress_bar("planning [blocks]", in_bytes=True) as inner:
            inner(0, 4_000_000)
            say("what is printed draws the bars again")
        advance(0, 12)
        say("so does this")
    assert "/?" not in drawn()
    assert "0 of 12" in drawn()
    assert re.search(r"planning \[blocks\] +\S+ +0 bytes of 4.0 MB", drawn())


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


def test_the_lines_of_training_go_above_its_bar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import jaxdata.train.trainer

    class Trained:
        def __init__(self, *_: Any, say: Any, advance: Any, **__: Any) -> None:
            advance(0, 4)
            say("step 1/4  loss 5")

        def run(self) -> Any:
            return SimpleNamespace(halted=None)

    monkeypatch.setattr(jaxdata.train.trainer, "Trainer", Trained)
    path = builders.run(tmp_path, {"a": 2})
    with terminal() as drawn:
        train.run(load_config(path))
    assert begins_a_line(drawn(), "step 1/4  loss 5")
