"""Fixtures that all tests share."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.leftovers import Leftovers


def xla_flags(devices: int) -> str:
    """Several virtual devices in a process, whose programs are compiled in half the time."""
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return f"--xla_force_host_platform_device_count={devices} {quick}"


# Set before anything imports jax; processes that tests start inherit it.
os.environ.setdefault("XLA_FLAGS", xla_flags(4))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: sums in one order, no waiting for others

# A script's background job and `nohup` ignore SIGINT, and so would all that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first tier tries the same examples every time, so that what fails does not depend on chance;
# every night `--hypothesis-profile=random` looks for others.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("random", calm)
settings.register_profile("jaxdata", calm, derandomize=True)
settings.load_profile("jaxdata")

ROOT = Path(__file__).parent.parent
SHARED_DATA = Path(os.environ.get("JAXDATA_TEST_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text and tokenizer files; not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real text at {SHARED_DATA} (set JAXDATA_TEST_DATA to a copy)")
    return SHARED_DATA


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tmp_path`, for what the tests of a module share."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans of read-only datasets, and pages of buckets, go to a folder of the test's own."""
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    yield
    if pages := sys.modules.get("jaxdata.storage.pages.page_cache"):
        pages.close_caches()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those with many: all workers end about together."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    every = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -every[item.path]))


def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """Go on behind the test that took its process along: `loadfile` would begin with it again."""
    assigned = [units for files in sched.assigned_work.values() for units in files.values()]
    for units in [*sched.workqueue.values(), *assigned]:
        if crashitem in units:
            units[crashitem] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let go of a test's arguments: pytest keeps the last test's until after `_leftovers`."""
    getattr(item, "funcargs", {}).clear()


@pytest.fixture(scope="session", autouse=True)
def _leftovers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leftovers]:
    """At the end of a process's tests, nothing that they took is left; what is fails the last."""
    leftovers = Leftovers(tmp_path_factory.getbasetemp())
    yield leftovers
    if left := leftovers.report():
        pytest.fail(f"tests of this process left behind:\n{left}", pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def _noted_leftovers(_leftovers: Leftovers, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    _leftovers.note(request.module.__name__)
