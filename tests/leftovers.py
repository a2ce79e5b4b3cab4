"""What a process holds that tests could leave behind, each with a name of its own."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ME = Path("/proc/self")
_LIBRARIES = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    *("tqdm_monitor", "/dev/shm/sem."),  # of tqdm, which Hugging Face's datasets use
    "thread jaxdata-obstore",  # one a process
)
"""what lives as long as this process"""
_PIPES = 20
"""so many descriptors of pipes are none: libraries keep a few, as torch those of the workers of a
`DataLoader` that could not begin, and resource trackers. A leak makes more and more"""
_GRACE = (0, 0.1, 0.4, 1.5, 3)
"""seconds to wait for what is just ending"""


def held() -> set[str]:
    """Open descriptors, shared maps of files, threads, and child processes that have not ended."""
    return {*_descriptors(), *_maps(), *_threads(), *_children()}


def _descriptors() -> Iterator[str]:
    for each in (_ME / "fd").iterdir() if _ME.exists() else ():
        with suppress(OSError):  # the descriptor of this very loop
            yield f"descriptor {each.name} of {each.readlink()}, inode {each.stat().st_ino}"


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
    """

    def __init__(self, folder: Path) -> None:
        self._marks = (str(folder), "memfd:", "(deleted)", "pipe:[")
        self._known: dict[str, str] = dict.fromkeys(held(), "")

    def note(self, module: str) -> None:
        """Whatever is new was taken by this module, which has just ended."""
        for each in held() - self._known.keys():
            self._known[each] = module

    def report(self) -> str:
        """A line for each of them; empty if there are none."""
        self.note("a fixture of the session")
        left: list[str] = []
        for seconds in _GRACE:
            time.sleep(seconds)
            gc.collect()
            left = [each for each in sorted(held()) if self._known.get(each) and self._ours(each)]
            pipes = [each for each in left if " of pipe:[" in each]
            if len(pipes) <= _PIPES:
                left = [each for each in left if each not in pipes]
            if not left:
                break
        return "\n".join(f"{each}, since {self._known[each]}" for each in left)

    def _ours(self, name: str) -> bool:
        if any(library in name for library in _LIBRARIES):
            return False
        is_file = name.startswith(("descriptor", "map"))
        return not is_file or any(mark in name for mark in self._marks)


def descriptors() -> int:
    """How many are open, once what nobody refers to any longer is gone: of other tests, too."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
