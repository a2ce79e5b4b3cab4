"""A progress bar where somebody watches, silence elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None], None]
"""Called with (done, total); None where nobody knows how much there is."""
_PATIENCE = 1.0
_TICK = 0.2


@contextmanager
def progress_bar(label: str, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Give a function to report progress to; draws on stderr only where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(label), BarColumn(), count, TimeRemainingColumn())
    lines = (
        sys.stdout.isatty()
    )  # what is printed meanwhile goes above the bar, but not out of a file
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=lines) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def status_line(text: Callable[[], str]) -> Iterator[None]:
    """Say on stderr what is going on, if it takes more than a second and that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        if ended.wait(_PATIENCE):
            return
        from rich.console import Console

        with Console(stderr=True).status(text()) as line:
            while not ended.wait(_TICK):
                line.update(text())

    thread = threading.Thread(target=show, daemon=True, name="jaxdata-status")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
