"""The settings of the suite: a test that hangs fails alone, and an interrupt is heard anywhere."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

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
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n1"]
    limits = ["-o", "faulthandler_timeout=4", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", *settings, *limits, "-rA", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    assert "2 failed, 2 passed" in printed, printed
    passed = re.findall(r"^PASSED .*::(\w+)$", printed, re.MULTILINE)
    assert passed == ["test_first", "test_last"], printed


def test_an_interrupt_is_heard_where_the_shell_ignores_it() -> None:
    code = "import os, signal, tests.conftest; os.kill(os.getpid(), signal.SIGINT)"
    ignored = f"import signal, subprocess, sys; signal.signal({signal.SIGINT:d}, signal.SIG_IGN)"
    run = f"{ignored}; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    ended = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, cwd=ROOT)
    assert "KeyboardInterrupt" in ended.stderr, ended.stderr
