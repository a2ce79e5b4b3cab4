"""Commands of `jaxdata`, in the test's own process or in one of their own."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

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


def apart(
    *arguments: str | Path, status: int = 0, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a user does."""
    command = [sys.executable, "-m", "jaxdata", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done
