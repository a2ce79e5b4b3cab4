"""Weights that change while a run goes on: by its own calls, or by a file that it follows."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError, SourceExhausted, log
from jaxdata.base.settings import read_yaml
from jaxdata.feed.same_rows import Board
from jaxdata.rows.map_datasets import MixedDataset
from jaxdata.rows.mixing.amended_rows import amended, check_named
from jaxdata.rows.mixing.phases import Amendment, Weights


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


_WAIT, _POLL = 120.0, 0.002
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
            if time.monotonic() - begun > _WAIT:
                raise InputError(
                    f"{board.process} follows {self._path}, and the first process does not: every "
                    "process has to, at the same step"
                )
            time.sleep(_POLL)
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
