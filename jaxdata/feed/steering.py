"""Weights that change while a run goes on, and the states of its processes, which stay the same.

Processes compare their states at the first batch, and where one is changed: hosts with different
data would train on together until one ends. No collective compares them, which would hang where a
process asks for a batch alone: processes leave notes on a board, and wait for each other a limited
time. Weights are changed by calls, or by a file that the run follows.
"""

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError, SourceExhausted, differences, digest, itemized, log
from jaxdata.base.settings import read_yaml
from jaxdata.rows.map_datasets import MixedDataset
from jaxdata.rows.mixing.amended_rows import amended, check_named
from jaxdata.rows.mixing.phases import Amendment, Weights

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
    _post(board, note)
    begun = since = time.monotonic()
    pause = _POLL
    while (here := board.add(note.state, 0)) < board.processes:
        now = time.monotonic()
        if (told := _told(board, note)) is not None:
            raise _different(board, note, told, when)
        if (other := _unknown(board)) is None:
            since = now
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


def _post(board: Board, note: _Note) -> None:
    """Post a state; processes that wait at another see it, and tell."""
    if (board.scope, note.state) not in _POSTED:
        _POSTED.add((board.scope, note.state))
        board.put("last", json.dumps(note))
        if board.add(f"{note.state} {note.process}", 1) == 1:
            board.add(note.state, 1)


def _unknown(board: Board) -> _Note | None:
    """What was posted last, if it is a state at which this process never was."""
    text = board.get("last")
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


def check_steered(rows: Any, weights: Weights) -> MixedDataset:
    """Refuse rows that no weights mix, and weights that are not of their sources."""
    if not isinstance(rows, MixedDataset):
        raise InputError(
            f"these rows cannot be reweighed: given a {type(rows).__name__}, expected rows as "
            "jaxdata.mix returns them, not transformed ones"
        )
    check_named(weights, rows.table.names)
    return rows


def replayed(rows: Any, noted: Sequence[Mapping[str, Any]]) -> tuple[Any, str]:
    """Rows with the changes that a run made while it went on, and why they do not fit, if so.

    Args:
        rows: of the run, with the amendments that were planned.
        noted: the amendments in its state; those without `asked_at` were planned.
    """
    for each in noted:
        if "asked_at" not in each:
            continue
        try:
            mixed = check_steered(rows, each["weights"]).table
            change = Amendment({}, weights=each["weights"], asked_at=each["asked_at"])
            rows = MixedDataset(amended(mixed, each["row"], change))
        except (InputError, SourceExhausted) as error:
            return rows, f"the run was reweighed from row {each['row']:,} on: {error}"
    return rows, ""


_FILE_WAIT, _FILE_POLL = 120.0, 0.002
"""seconds"""
_CALLS = Counter[str]()
"""by the scope of a board, how often this process has followed a file"""


class WeightsFile:
    """A file of weights that a running loader follows: `{web: 0.5, code: 0.5}`, YAML or JSON.

    Of several processes one reads the file, the first of those that share batches. A file that
    cannot be used is said once, and the weights stay.

    Args:
        path: the file; while there is none, nothing changes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 40)
    >>> rows = {name: jaxdata.pack(docs, seq_len=6) for name in ("web", "code")}
    >>> loader = jaxdata.Loader(jaxdata.mix(rows, weights={"web": 1}), batch_size=2)
    >>> file = Path(tempfile.mkdtemp(), "weights.yaml")
    >>> control = WeightsFile(file)
    >>> control.follow(loader) is None, file.write_text("{web: 1, code: 1}") > 0
    (True, True)
    >>> control.follow(loader), control.follow(loader) is None
    (4, True)
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._said = Path(path), ""

    def follow(self, loader: Any) -> int | None:
        """Reweigh a loader where the file asks for other weights than before.

        Every process has to call it at the same step.

        Returns:
            The first row that is mixed by them; None if nothing changes.
        """
        board: Board | None = loader.board
        if board is None and loader.hosts > 1:
            raise InputError(
                f"{loader.hosts} processes share these batches and know nothing of each other, so "
                "that they cannot follow a file: read it in one, and call reweigh in all"
            )
        wanted = self._read(loader) if board is None else self._shared(loader, board)
        if wanted is None or wanted == last_asked(loader.rows):
            return None
        try:
            row: int = loader.reweigh(wanted)
        except (InputError, SourceExhausted) as error:
            self._say(error)
            return None
        return row if row < len(loader.rows) else None

    def _shared(self, loader: Any, board: Board) -> Any:
        """What the first process reads."""
        _CALLS[board.scope] += 1
        key = f"weights {_CALLS[board.scope]}"
        if board.leads and board.add(f"{key} read", 1) == 1:
            board.put(key, json.dumps(self._read(loader)))
        begun = time.monotonic()
        while not (note := board.get(key)):
            if time.monotonic() - begun > _FILE_WAIT:
                raise InputError(
                    f"{board.process} follows {self._path}, and the first process does not: every "
                    "process has to, at the same step"
                )
            time.sleep(_FILE_POLL)
        return json.loads(note)

    def _read(self, loader: Any) -> Any:
        """The weights in the file; None if there are none to use."""
        try:
            weights, _ = read_yaml(self._path.read_text(), "it")
            if weights is not None:
                check_steered(loader.rows, weights)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, InputError) as error:
            self._say(error)
            return None
        self._said = ""
        return weights

    def _say(self, error: Exception) -> None:
        if str(error) != self._said:
            self._said = str(error)
            log.warning("%s cannot be used, and the weights stay: %s", self._path, error)


def last_asked(rows: Any) -> Any:
    """The weights that the run was last reweighed by; None before."""
    asked = [each for each in getattr(rows, "amendments", ()) if "asked_at" in each]
    return max(asked, key=lambda each: each["asked_at"])["weights"] if asked else None
