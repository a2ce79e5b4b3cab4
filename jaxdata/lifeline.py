"""How processes stay together: a child ends with its parent, a forked copy forgets its original's.

A child that only looks at its connection now and then notices a killed parent late: it may be in
the middle of a long call. So each has a *lifeline*, a pipe into which nobody ever writes. When
the parent ends, however it ends, the kernel closes the parent's end and signals the child, whose
default is to end at once. (Linux can also signal a child when its parent ends, but means by that
the thread that started it.)
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import weakref
from contextlib import suppress
from typing import IO, Any

_forgetful: weakref.WeakSet[Any] = weakref.WeakSet()


def lifeline() -> tuple[int, IO[bytes]]:
    """A new lifeline: the descriptor for a child to hold on to, and the parent's end."""
    child, parent = os.pipe()
    return child, os.fdopen(parent, "wb", 0)


def hold_on(child: int) -> None:
    """End this process, whatever it is doing, when the other end of a lifeline is closed."""
    on_linux = sys.platform == "linux"  # elsewhere the signal is ignored by default
    signal.signal(signal.SIGIO, signal.SIG_DFL if on_linux else lambda *_: os._exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    with suppress(OSError):  # not every system can: then the child notices when it next reads
        fcntl.fcntl(child, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(child, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([child], [], [], 0)[0]:  # it was closed before
        os._exit(1)


def forget_in_forks(one: Any) -> None:
    """Have `one.forget()` called in every forked copy of this process, as long as it lives.

    A forked copy has neither the threads nor the child processes of the original, but it has copies
    of the objects that stand for them, and of locks that a thread held.
    """
    _forgetful.add(one)


def _forget() -> None:
    for one in list(_forgetful):
        one.forget()


os.register_at_fork(after_in_child=_forget)
