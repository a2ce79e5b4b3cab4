"""Progress bars where somebody watches, silence elsewhere."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxdata.base.errors import sized

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
    words = sized if in_bytes else "{:,}".format
    with _drawing() as bars:
        task = bars.add_task(label, total=None, said="")

        def advance(done: int, total: int | None) -> None:
            said = words(done) + (f" of {words(total)}" if total is not None else "")
            bars.update(task, completed=done, total=total, said=said)

        try:
            yield advance
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
            task = bars.add_task(text(), total=None, said="")
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
    if _bars and sys.stdout.isatty():
        _bars[-1].console.out(line, highlight=False)
        _bars[-1].refresh()
    else:
        print(line, flush=True)


_lock = threading.Lock()
_bars: list[Any] = []
"""of this process, once for each who draws some: a terminal shows one group of them"""


@contextmanager
def _drawing() -> Iterator[Any]:
    """The bars that are drawn, from the first who needs them to the last."""
    with _lock:
        if not _bars:
            _bars.append(_made())
            _bars[0].start()
        else:
            _bars.append(_bars[0])
    try:
        yield _bars[0]
    finally:
        with _lock:
            bars = _bars.pop()
            if not _bars:
                bars.stop()


def _made() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # What is printed meanwhile goes above the bars, but not out of a file.
        redirect_stdout=sys.stdout.isatty(),
    )
