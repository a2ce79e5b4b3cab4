"""A process killed at any of its changes of files: the same command does the rest, and tidies up.

The process is this one. At its n-th change it dies: from then on every change fails, what cleans up
included. The next life finds what the last one left, and that its process is gone.
"""

import io
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.dataset.deleting import delete_documents
from jaxdata.dataset.lease import leased, read_history
from jaxdata.dataset.verify import verify
from jaxdata.dataset.views.source_view import SourceView
from jaxdata.dataset.views.writing import remove_views, write_views
from jaxdata.storage import open_store, zarr
from tests.commands import in_a_process
from tests.converter.here import Here, objects, records, run_here, tree, write_lines

NAMES = ("mkdir", "open", "rename", "replace", "rmdir", "unlink", "fsync")
CHANGES: list[Any] = [*((os, name) for name in NAMES), (io, "open"), (zarr, "write")]


class Killed(BaseException):
    """The end of a process; nothing that handles errors handles it."""


class Lives:
    """Lives of a process, each of which dies at the n-th change of files."""

    def __init__(self) -> None:
        self.number = 0  # of this life
        self.changes = 0
        self.dies_at: int | None = None

    def counting(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            mode = (*args, "r")[1] if change.__name__ == "open" else "w"
            if isinstance(mode, int):
                mode = "w" if mode & (os.O_WRONLY | os.O_RDWR) else "r"
            if set(mode) & set("wax+"):
                self.changes += 1
                if self.dies_at is not None and self.changes >= self.dies_at:
                    raise Killed
            return change(*args, **options)

        return counted

    def survived(self, run: Callable[[Path], object], output: Path, dies_at: int | None) -> bool:
        """Live once; tell whether it came to an end before it was to die."""
        self.number, self.changes, self.dies_at = self.number + 1, 0, dies_at
        try:
            run(output)
        except Killed:
            _close_files_below(output)
            return False
        finally:
            self.dies_at = None
        return True


def _close_files_below(folder: Path) -> None:
    """The end of a process gives its locks back."""
    for each in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            if str(folder) in str(Path(each.path).readlink()):
                os.close(int(each.name))


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Lives:
    lives = Lives()
    for place, name in CHANGES:
        monkeypatch.setattr(place, name, lives.counting(getattr(place, name)))
    monkeypatch.setattr("jaxdata.dataset.lease._started", lambda _pid: lives.number)
    return lives


def leftovers(folder: Path) -> list[str]:
    """Files that only a process at work needs."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [name for name in names if ".tmp-" in name or ".lease" in name or "work/" in name]


def a_dataset(output: Path) -> None:
    texts = records(*(f"document {n % 3}" for n in range(6)))
    run_here(write_lines(output.parent / "texts.jsonl", texts), output)


def a_view(output: Path) -> None:
    a_dataset(output)
    view = SourceView(documents=6, dropped=np.array([2]), reasons=["near"])
    write_views(output, "d1", {"train/web": view}, parameters={}, made_of={})


def remove(output: Path) -> None:
    with suppress(InputError):  # it was removed, and all that was left to say is so
        remove_views(output, "d1")


def deduplicate(output: Path) -> None:
    with mock.patch("jaxdata.dedup.api.choose_engine", return_value=Here):
        jaxdata.deduplicate(output, "d1")


def pairs(output: Path) -> None:
    sides = {"prompt": "p", "rejected": "r"}
    lines = objects(*(sides | {"chosen": f"c{n}", "url": f"u{n}"} for n in range(6)))
    run_here(write_lines(output.parent / "pairs.jsonl", lines), output, task="dpo", keep=["url"])


def delete(output: Path) -> None:
    assert not verify(output).damage  # whole or untouched
    delete_documents(output, urls=["u2"], sources=["web/chosen"])
    assert not verify(output).damage
    assert {one["command"] for one in read_history(open_store(output))[1:]} == {"delete_documents"}


COMMANDS: list[Any] = [
    (a_view, remove, 3, 20),
    (pairs, delete, 97, 200),
    pytest.param(pairs, delete, 1, 200, marks=pytest.mark.exhaustive),
    pytest.param(a_dataset, deduplicate, 1, 50, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("begin", "command", "every", "least"), COMMANDS)
def test_a_command_killed_at_any_change_does_the_rest_when_it_is_run_again(
    lives: Lives, tmp_path: Path, begin: Callable[[Path], None], command: Callable[[Path], None],
    every: int, least: int,
) -> None:  # fmt: skip
    begun, whole = tmp_path / "begun", tmp_path / "whole"
    begun.mkdir()
    begin(begun)
    shutil.copytree(begun, whole)
    command(whole)
    for at in count(1, every):
        output = tmp_path / f"{at}"
        shutil.copytree(begun, output)
        if lives.survived(command, output, at):
            break
        assert lives.survived(command, output, None)
        assert not leftovers(output), f"killed at change {at}"
        assert tree(output) == tree(whole), f"killed at change {at}"
    assert at > least


def killed_at_work(folder: str) -> None:
    store = open_store(folder)
    with leased(store, [""]), leased(store, ["a"]), store.create("a/b/c"):
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_was_writing_goes_with_the_next_lease(tmp_path: Path) -> None:
    in_a_process(killed_at_work, str(tmp_path), status=-signal.SIGKILL)
    assert len(leftovers(tmp_path)) == 3
    with leased(open_store(tmp_path), ["other"]):
        assert leftovers(tmp_path) == ["a/.lease", "other/.lease"]
    with pytest.raises(KeyboardInterrupt), leased(open_store(tmp_path), ["a"]):  # noqa: PT012
        (tmp_path / "a/.tmp-jaxdata-left").write_text("of a worker that was ended")
        raise KeyboardInterrupt
    assert leftovers(tmp_path) == []
