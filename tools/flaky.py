"""Run the tests again and again on a machine that is kept busy: what fails then depends on time.

    python tools/flaky.py                          # the first tier, ten times, at a load of 8
    python tools/flaky.py tests/feed --runs 50     # one room

As many processes as the load asks for share the tests of a run, so that each waits for the others
all the time, and files meet in another order in each run. The exit code is 1 if a test failed.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Parse the arguments, run the tests, print what failed how often."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", help="default: all")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--load", type=int, default=8, help="processes that run at a time")
    arguments = parser.parse_args()
    tests = arguments.tests or sorted(map(str, Path(ROOT, "tests").rglob("test_*.py")))
    failed: Counter[str] = Counter()
    ended_badly = 0
    for run in range(arguments.runs):
        random.Random(run).shuffle(tests)
        options = ["-n", str(arguments.load), "--maxprocesses", str(arguments.load), "-q", "-rfE"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        names = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        failed.update(names)
        ended_badly += done.returncode != 0
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
        load = os.getloadavg()[1]
        print(
            f"run {run + 1}: {last} (load {load:.1f}, {time.monotonic() - began:.0f} s)", flush=True
        )
        if names:
            print(re.split(r"(?m)^=+ (?=ERRORS|FAILURES)", done.stdout, maxsplit=1)[-1], flush=True)
    for name, times in failed.most_common():
        print(f"{name} failed in {times} of {arguments.runs} runs")
    return min(ended_badly, 1)


if __name__ == "__main__":
    sys.exit(main())
