"""Commands of `jaxdata`, in the test's own process or in one of their own; functions, and forks."""

import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from jaxdata import cli
from tests.converter.here import in_this_process


def run(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, without the second that another takes to start."""
    command = list(map(str, arguments))
    with (
        redirect_stdout(io.StringIO()) as said,
        redirect_stderr(io.StringIO()) as told,
        in_this_process(),
    ):
        code = cli._run(command)
    assert code == status, told.getvalue()
    return subprocess.CompletedProcess(command, code, said.getvalue(), told.getvalue())


def described(*arguments: object, status: int = 0) -> Any:
    """What a command says with `--json`."""
    return json.loads(run(*map(str, arguments), "--json", status=status).stdout)


def apart(
    *arguments: str | Path, status: int = 0, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a user does."""
    done = python("-m", "jaxdata", *arguments, status=status, **options)
    assert "Traceback" not in done.stderr
    return done


def python(
    *arguments: object, status: int = 0, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python; the options are `subprocess.run`'s."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def in_a_process(function: Callable[..., None], *given: str, **options: Any) -> None:
    """Call a function of a test module, with texts, in a process of its own."""
    code = f"import {function.__module__} as t; t.{function.__name__}(*{given!r})"
    python("-c", code, cwd=Path(__file__).parents[1], **options)


def forked(work: Callable[[], None]) -> int:
    """Do some work in a forked copy, which ends as a process does; returns its process id."""
    if child := os.fork():
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)


def assert_done(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0
