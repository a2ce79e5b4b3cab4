"""A headless Chromium, driven over a pipe: what a reader's browser makes of a page."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)

WITH_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]]
for number, pipe in enumerate(pipes, 3):
    os.dup2(pipe, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""runs a program that reads from file 3 and writes to file 4"""


class Page:
    """A tab of a browser, and what happened in it: requests and messages."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._numbers = into, os.fdopen(out, "rb"), itertools.count(1)
        self._left = b""
        self.events: list[dict[str, Any]] = []
        made = self._ask("Target.createTarget", url="about:blank")
        attached = self._ask("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        return self._ask(method, **values)

    def _ask(self, method: str, **values: Any) -> dict[str, Any]:
        number = next(self._numbers)
        sent = {"id": number, "method": method, "params": values}
        if self._session is not None:
            sent["sessionId"] = self._session
        os.write(self._into, json.dumps(sent).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._out.fileno(), 2**16)
            assert read, "the browser has ended"
            self._left += read
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(
        self, path: Path, *, dark: bool = False, width: int = 1180, script: bool = True
    ) -> None:
        """Open a file, and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._load("Page.navigate", url=path.as_uri())

    def reload(self) -> None:
        """Load the page again, as it does itself while a run goes on."""
        self._load("Page.reload")

    def _load(self, method: str, **values: Any) -> None:
        self.events.clear()
        self.call(method, **values)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, code: str) -> Any:
        """The value of an expression."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    @property
    def requests(self) -> list[str]:
        """What it has asked for since it was opened."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in asked]

    @property
    def messages(self) -> list[str]:
        """What it has complained about."""
        said = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in said]

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._out.close()
        os.close(self._into)


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A tab of a headless browser whose files are in `folder`; skips where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser to look with: none of {', '.join(NAMES)} is installed")
    read, into = os.pipe()
    out, write = os.pipe()
    options = [*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    command = [program, *options, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_PIPES, str(read), str(write), *command],
        pass_fds=(read, write),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    os.close(read)
    os.close(write)
    try:
        page = Page(into, out)
        yield page
        page.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
