"""The suite itself: a test that hangs fails alone, and what tests leave behind fails the run."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


LEAKY = """
import os

def test_that_keeps_a_descriptor():
    os.memfd_create("kept")
"""


def pytest_of(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_a_run_that_leaves_something_behind_fails(tmp_path: Path) -> None:
    names = "_leftovers, _noted_leftovers"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {names}")
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    done = pytest_of(tmp_path, "-n1")
    assert "tests of this process left behind:\ndescriptor " in done.stdout
    assert ", since test_leaky" in done.stdout
    assert "1 passed, 1 error" in done.stdout


HANGS = """
import ctypes, threading
import pytest

def test_first():
    pass

@pytest.mark.timeout(1)
def test_hangs():
    threading.Event().wait()

def test_hangs_in_c():
    ctypes.PyDLL(None).pause()  # keeps the interpreter's lock: no handler of a signal runs

def test_last():
    pass
"""


def test_a_test_that_hangs_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n1", "-rA"]
    limits = ["-o", "faulthandler_timeout=4", "-p", "tests.conftest"]
    printed = pytest_of(tmp_path, *settings, *limits).stdout
    assert "2 failed, 2 passed" in printed, printed
    passed = re.findall(r"^PASSED .*::(\w+)$", printed, re.MULTILINE)
    assert passed == ["test_first", "test_last"], printed


def test_an_interrupt_is_heard_where_the_shell_ignores_it() -> None:
    code = "import os, signal, tests.conftest; os.kill(os.getpid(), signal.SIGINT)"
    ignored = f"import signal, subprocess, sys; signal.signal({signal.SIGINT:d}, signal.SIG_IGN)"
    run = f"{ignored}; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    ended = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, cwd=ROOT)
    assert "KeyboardInterrupt" in ended.stderr, ended.stderr
