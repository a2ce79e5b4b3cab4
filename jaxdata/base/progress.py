"""Progress bars where somebody watches, silence elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Advance = Callable[[int, int | None], None]
"""Called with (done, total); None where nobody knows how much there is."""
_PATIENCE = 1.0
_TICK = 0.2


@contextmanager
def progress_bar(label: str, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Give a function to report progress to; draws on stderr only where that is a terminal.

    Bars within bars are drawn below each other.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with _drawing() as bars:
        task = bars.add_task(label, total=None, in_bytes=in_bytes)
        try:
            yield lambda done, total: bars.update(task, completed=done, total=total)
        finally:
            bars.remove_task(task)


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
        with _drawing() as bars:
            task = bars.add_task(text(), total=None, in_bytes=False)
            while not ended.wait(_TICK):
                bars.update(task, description=text())
            bars.remove_task(task)

    thread = threading.Thread(target=show, daemon=True, name="jaxdata-status")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(line: str) -> None:
    """Print a line, above the bars that are drawn on its terminal.

    `click.echo` writes around what rich puts in the place of `sys.stdout`: into the bar.
    """
    bars = _Drawn.bars
    if bars is not None and sys.stdout.isatty():
        bars.console.out(line, highlight=False)
        bars.refresh()
    else:
        print(line, flush=True)


class _Drawn:
    """The bars of this process: a terminal shows one group of them."""

    lock = threading.Lock()
    bars: Any = None
    users = 0


@contextmanager
def _drawing() -> Iterator[Any]:
    """The bars that are drawn, from the first who needs them to the last."""
    with _Drawn.lock:
        if not _Drawn.users:
            _Drawn.bars = _made()
            _Drawn.bars.start()
        _Drawn.users += 1
    try:
        yield _Drawn.bars
    finally:
        with _Drawn.lock:
            _Drawn.users -= 1
            if not _Drawn.users:
                _Drawn.bars.stop()
                _Drawn.bars = None


def _made() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Done(ProgressColumn):
        """What is done of how much; nothing before anybody said it."""

        in_bytes, in_numbers = DownloadColumn(), MofNCompleteColumn()

        def render(self, task: Task) -> Text:
            column = self.in_bytes if task.fields["in_bytes"] else self.in_numbers
            known = task.total is not None or task.completed
            return column.render(task) if known else Text("")

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Done())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # What is printed meanwhile goes above the bars, but not out of a file.
        redirect_stdout=sys.stdout.isatty(),
    )
