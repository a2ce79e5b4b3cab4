"""Code that runs where few files may be open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

DESCRIPTORS = 256


def with_few_descriptors(code: str, *given: str | Path) -> Any:
    """Run code in a process that may open `DESCRIPTORS` files; returns the JSON it prints last."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS},) * 2)\n"
    command = [sys.executable, "-c", limits + code, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
