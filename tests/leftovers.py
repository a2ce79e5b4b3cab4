"""What a process holds that tests could leave behind, each with a name of its own."""

import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_ME = Path("/proc/self")
_LIBRARIES = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    *("tqdm_monitor", "/dev/shm/sem."),  # of tqdm, which Hugging Face's datasets use
    "thread jaxdata-obstore",  # one a process
)
"""what lives as long as this process"""
_TRACKERS = [
    ("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
    ("multiprocess.resource_tracker", "_resource_tracker", "_fd"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
]
"""where libraries keep the descriptor of a pipe for as long as this process lives"""
_GRACE = (0, 0.1, 0.4, 1.5, 3)
"""seconds to wait for what is just ending"""


def held() -> set[str]:
    """Open descriptors, shared maps of files, threads, and child processes that have not ended."""
    return {*_descriptors(), *_maps(), *_threads(), *_children()}


def _descriptors() -> Iterator[str]:
    for each in (_ME / "fd").iterdir() if _ME.exists() else ():
        with suppress(OSError):  # the descriptor of this very loop
            yield f"descriptor {each.name} of {each.readlink()}, inode {each.stat().st_ino}"


def _of_trackers() -> set[str]:
    """The beginnings of the names of their descriptors."""
    trackers = [(sys.modules.get(module), name, field) for module, name, field in _TRACKERS]
    found = [getattr(getattr(module, name, None), field, None) for module, name, field in trackers]
    return {f"descriptor {number} of pipe:" for number in found if number is not None}


def _maps() -> Iterator[str]:
    for line in (_ME / "maps").read_text().splitlines() if _ME.exists() else ():
        address, access, _, _, _, *place = line.split(maxsplit=5)
        if place and access.endswith("s"):  # shared; those of libraries are private
            yield f"map of {place[0]} at {address}"


def _threads() -> Iterator[str]:
    for each in threading.enumerate():
        yield f"thread {each.name}, {each.ident}"


def _children() -> Iterator[str]:
    for task in (_ME / "task").iterdir() if _ME.exists() else ():
        with suppress(OSError):  # it has just ended
            for pid in (task / "children").read_text().split():
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # a zombie has none
                    yield f"process {pid}: {command}"


class Leftovers:
    """What tests of this process have taken and still hold, with the module that took it.

    Args:
        folder: where tests write. Of descriptors and maps, those of pipes count, and of files
            there; those of files elsewhere, and of sockets, are libraries'.
        pipes: so many descriptors of pipes are none: libraries keep a few, as torch those of the
            workers of a `DataLoader` that could not begin. A leak makes more and more.
    """

    def __init__(self, folder: Path, pipes: int = 0) -> None:
        self._pipes = pipes
        self._marks = (str(folder), "memfd:", "(deleted)", "pipe:[")
        self._known: dict[str, str] = dict.fromkeys(held(), "")

    def note(self, module: str) -> None:
        """Whatever is new was taken by this module, which has just ended."""
        for each in held() - self._known.keys():
            self._known[each] = module

    def report(self, grace: Sequence[float] = _GRACE) -> str:
        """A line for each of them; empty if there are none."""
        self.note("a fixture of the session")
        left: list[str] = []
        for seconds in grace:
            time.sleep(seconds)
            gc.collect()
            left = [each for each in sorted(held()) if self._known.get(each)]
            if not (left := self._ours(left)):
                break
        return "\n".join(f"{each}, since {self._known[each]}" for each in left)

    def _ours(self, left: Sequence[str]) -> list[str]:
        ours = [each for each in left if self._is_ours(each)]
        pipes = [each for each in ours if " of pipe:[" in each]
        return [each for each in ours if len(pipes) > self._pipes or each not in pipes]

    def _is_ours(self, name: str) -> bool:
        if any(library in name for library in _LIBRARIES):
            return False
        if name.startswith(tuple(_of_trackers())):
            return False
        is_file = name.startswith(("descriptor", "map"))
        return not is_file or any(mark in name for mark in self._marks)


def descriptors() -> int:
    """How many are open, once what nobody refers to any longer is gone: of other tests, too."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
