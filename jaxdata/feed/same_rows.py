"""The processes of a run compare their states at the first batch, and where one is changed.

Hosts with different data would train on together until one ends. No collective compares them, which
would hang where a process asks for a batch alone: processes leave notes on a board, and wait for
each other a limited time.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError, log
from jaxdata.base.facts import differences, digest, itemized

_WAIT = 120.0
"""seconds for which a process waits for others, which its first step would wait for anyway"""
_GRACE = 5.0
"""seconds for which another may be at other rows: two threads may begin two loaders"""
_TOLD = 10.0
"""seconds for which a process that found a difference stays for the others to read of it"""
_POLL = 0.05
_POSTED: set[tuple[str, str]] = set()
"""the scopes and states that this process has posted"""


FIRST = "at the first batch"


class Board(ABC):
    """Numbers and notes that all processes of a run see."""

    scope: str
    """of which processes"""
    process: str
    """this one, in errors"""
    processes: int
    leads: bool
    """whether this process is the one that others follow"""

    @abstractmethod
    def add(self, key: str, number: int) -> int:
        """Add to a number, 0 at first; returns the sum."""

    @abstractmethod
    def put(self, key: str, note: str) -> None:
        """Leave a note, in place of the one there."""

    @abstractmethod
    def get(self, key: str) -> str:
        """The note; empty if there is none."""


class _Note(NamedTuple):
    """What a process posts."""

    state: str
    process: str
    facts: dict[str, Any]


def compare_states(board: Board, state: Mapping[str, Any], when: str = FIRST) -> None:
    """Return when all processes are at this state, or after a time, if some ask for no batch.

    Args:
        board: of the processes.
        state: of the loader here.
        when: the moment, for messages; any other than the first batch has to come for all.

    Raises:
        InputError: another process is at another state; in every process, with what differs.
    """
    plain = {name: state[name] for name in state.keys() - {"run", "fingerprint", "checksum"}}
    note = _Note(digest(state)[:16], board.process, itemized({**plain, **state["run"]}))
    other = _post(board, note)
    begun = since = time.monotonic()
    pause = _POLL
    while (here := board.add(note.state, 0)) < board.processes:
        now = time.monotonic()
        if (told := _told(board, note)) is not None:
            raise _different(board, note, told, when)
        other = _unknown(board, board.get("last")) or other
        if other is None or (board.scope, other.state) in _POSTED:
            other, since = None, now
        elif now - since > _GRACE and board.add(note.state, 0) < board.processes:
            board.put("different", json.dumps([note, other]))
            raise _different(board, note, other, when)
        if now - begun > _WAIT:
            board.put("last", "")
            alone = f"{board.process}: after {_WAIT:.0f} s {here} of {board.processes} processes"
            if when != FIRST:
                raise InputError(f"{alone} called reweigh: every process has to, at its step")
            log.warning("%s asked for a batch, so that not all rows are compared", alone)
            return
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _post(board: Board, note: _Note) -> _Note | None:
    """Post a state; returns that of another process which is there, if it is another."""
    if (board.scope, note.state) in _POSTED:
        return None
    _POSTED.add((board.scope, note.state))
    found = _unknown(board, board.get("last"))
    board.put("last", json.dumps(note))
    if board.add(f"{note.state} {note.process}", 1) == 1:
        board.add(note.state, 1)
    return found


def _unknown(board: Board, text: str) -> _Note | None:
    """A note, if it is of a state at which this process never was."""
    found = _Note(*json.loads(text)) if text else None
    return None if found is None or (board.scope, found.state) in _POSTED else found


def _told(board: Board, note: _Note) -> _Note | None:
    """The other state, where a process found that this one and another differ."""
    pair = [_Note(*each) for each in json.loads(board.get("different") or "[]")]
    others = [each for each in pair if each.state != note.state]
    return others[0] if len(others) == 1 else None


def _different(board: Board, note: _Note, other: _Note, when: str) -> InputError:
    """The error, once all know, as the process that keeps the board may end with it."""
    began = time.monotonic()
    board.add("told", 1)
    while board.add("told", 0) < board.processes and time.monotonic() - began < _TOLD:
        time.sleep(_POLL)
    words = f"in {note.process} (here):", f"in {other.process}:"
    found = differences(note.facts, other.facts, words).values()
    return InputError(
        f"the processes of this run would train on different rows, compared {when}:\n"
        + "\n".join(f"  {line}" for line in found)
        + "\ngive all of them the same dataset, config and state"
    )
