"""The state of a loader: one number, and the run that it belongs to.

One from a checkpoint is parsed and checked before anything in it is believed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jaxdata.base.errors import InputError, StateMismatch, differences, digest, itemized, shortened
from jaxdata.base.numbers import is_whole, plain
from jaxdata.base.settings import refusal
from jaxdata.rows.table import RowTable

STATE_VERSION = 1
STATE_FILES = ("metadata", "process_*-of-*.json")
"""of a state in a checkpoint: Orbax's for JSON, or grain's, one of each process"""


def state_files(folder: Any, below: str = "") -> list[Any]:
    """The files of a checkpoint that may hold a state, or of its items with `below="*/"`."""
    return [file for name in STATE_FILES for file in sorted(folder.glob(below + name))]


Row = Annotated[int, Field(ge=0, lt=2**63)]
Sizes = list[tuple[Row, Annotated[int, Field(ge=1, lt=2**63)]]]
"""of batches, by the row they begin at"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Turn(_Strict):
    """The steps that a worker of torch's `DataLoader` makes: one of every `workers`."""

    worker: Row
    workers: Row
    ahead: Row
    """steps that others make before its next one"""
    batch_sizes: Sizes


class SavedState(_Strict):
    """A state that says what a state says; whose it is, is another question."""

    version: int
    fingerprint: str
    next_row: Row
    batch_sizes: Sizes = Field(default=[])
    passes: Row = 0
    """over the rows, before this one"""
    skips: list[tuple[Row, Row] | tuple[Row, Row, Row]] = Field(default=[])
    amendments: list[dict[str, Any]] = Field(default=[])
    run: dict[str, Any] = Field(default={})
    position: dict[str, Any] | None = None
    """of a stream of text"""
    turn: Turn | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> "SavedState":
        rows = [row for row, _ in self.batch_sizes]
        if rows != sorted({*rows}):
            raise InputError(f"batch_sizes begin at rows {rows}: expected them in order")
        if wrong := [each for each in self.skips if each[0] >= each[1]]:
            raise InputError(f"skips {wrong[0]}: expected rows [first, stop] with first < stop")
        for each in self.amendments:
            numbers = [each.get("row"), each.get("asked_at", 0)]
            replayable = "asked_at" not in each or isinstance(each.get("weights"), dict | str)
            if not replayable or not all(is_whole(n) and 0 <= n < 2**63 for n in numbers):
                raise InputError(f"amendments {each}: expected a change with the row it begins at")
        return self


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with the checksum of its values: 8 hex digits; empty lists do not count."""
    facts = {name: value for name, value in state.items() if name != "checksum" and value != []}
    return {**state, "checksum": digest(facts)[:8]}


def parse_state(state: Any) -> SavedState:
    """The fields of a state, of the right types and within bounds.

    Raises:
        StateMismatch: naming the field that is wrong.
    """
    if not isinstance(state, Mapping):
        raise refused(f"this is not a loader state but a {type(state).__name__}: expected a dict")
    try:
        fields = orjson.loads(orjson.dumps(plain(state)))
    except (TypeError, RecursionError, InputError) as error:  # also hundreds of levels
        raise refused(f"this is not a loader state, which is plain JSON: {error}") from None
    known = SavedState.model_fields
    wrong = [f"it lacks {name!r}" for name in ("version", "fingerprint") if name not in fields]
    wrong += [
        f"it has {shortened(name)!r}, which no loader state has"
        for name in fields.keys() - known.keys() - {"checksum"}
    ]
    if wrong:
        raise refused(f"this is not a loader state: {', '.join(sorted(wrong))}")
    if fields["version"] is True or fields["version"] != STATE_VERSION:
        raise refused(
            f"the loader state has version {shortened(repr(fields['version']))}, this jaxdata "
            f"reads version {STATE_VERSION}: use the jaxdata that saved it"
        )
    checksum = fields.pop("checksum", sealed(fields)["checksum"])
    if checksum != sealed(fields)["checksum"]:
        raise refused(
            f"the loader state is damaged: its checksum is {shortened(repr(checksum))}, that of "
            f"its values {sealed(fields)['checksum']!r}. Restore an earlier checkpoint; if you "
            "changed the state yourself, leave out its checksum"
        )
    try:
        return SavedState.model_validate_json(orjson.dumps(fields))
    except ValidationError as error:
        said = shortened(refusal(SavedState, error), 300)
        raise refused(f"the loader state makes no sense: {said}") from None


def refused(reason: str) -> StateMismatch:
    """The error for a state; what cannot be printed in it is escaped."""
    return StateMismatch(reason.encode("utf-8", "backslashreplace").decode())


_REMEDIES = {
    "data": "open the dataset that the run was started on (a new conversion changes its "
    "fingerprint); for a source that was appended to since, or deleted from, use "
    "dataset.source(split, name, generation=0), or in a config generations: {name: 0}",
    "phases": "restore the curriculum of the run",
    "functions": "restore the text of the functions of map and filter, and the values they refer "
    "to, or start a new run",
}
_VIEWS = "views"
"""the fact that names the views through which sources are read"""
_FREELY = (
    "batch size, hosts, mesh, workers, prefetch and skips, and by an amendment the recipe from the "
    "state's row on,"
)


def fingerprint(run: Mapping[str, Any]) -> str:
    """16 hex digits over the facts that determine every row."""
    return digest(run)[:16]


def make_state(run: Mapping[str, Any], next_row: int, **more: Any) -> dict[str, Any]:
    """The state as plain JSON values, without what is None or an empty list."""
    fields = {
        "version": STATE_VERSION,
        "fingerprint": fingerprint(run),
        "next_row": next_row,
        **{name: value for name, value in more.items() if value is not None and value != []},
        "run": run,
    }
    return sealed(json.loads(json.dumps(fields)))


def check_run(
    state: SavedState,
    run: Mapping[str, Any],
    table: RowTable | None = None,
    *,
    free: str = _FREELY,
    amendment: Callable[[], Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Refuse a state of another run, with one line for each fact that differs.

    Args:
        state: where the run was.
        run: the facts of this run.
        table: its rows, or those that they were made of; None if unknown.
        free: other things that may change, for the message.
        amendment: makes what an amendment at the state's row has to say, for the message, or raises
            InputError.

    Returns:
        Changes to note in later states: those that the state already notes, and facts that change
        now and do not affect any row before the state's.
    """
    was, amendments = state.run, [] if table is None else table.amendments
    names = [name for name in _free_facts(state, table) if name in run and name in was]
    changes = {name: run[name] for name in names if run[name] != was[name]}
    now = {**run, **{name: was[name] for name in changes}}
    if state.fingerprint != fingerprint(now):
        changed = _changes(was, json.loads(json.dumps(now)))
        lines = [f"{line}: {_remedy(name, was)}" for name, line in changed.items()]
        offered = _offered(state.next_row, amendment, amendments) if lines and amendment else ""
        raise refused(
            "the loader state belongs to another run; the same rows would not follow:\n"
            + "\n".join(f"  {line}" for line in lines or ["its fingerprint and its facts disagree"])
            + f"\n({free} may change freely)"
            + offered
        )
    _check_past(state, amendments)
    noted = [each for each in state.amendments if "was" in each]
    noted += [
        {"row": state.next_row, name: value, "was": was[name]} for name, value in changes.items()
    ]
    return noted


def _offered(
    row: int, amendment: Callable[[], Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> str:
    """The lines that lead a run over to another recipe, or why there are none."""
    try:
        entry = [{"at_row": row, **amendment()}]
    except InputError as error:
        return f"\nNo amendment leads that run over to this recipe: {error}."
    lines = yaml.safe_dump(
        entry, default_flow_style=None, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    where = "the amendments of its config" if others else "its config"
    return (
        f"\nTo go on by this recipe from row {row:,}, set back what differs and add to {where} "
        f"(in Python, these are arguments of mixed.amend({row}, …)):\n"
        + "amendments:\n" * (not others)
        + lines.rstrip()
    )


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """By name, what differs; if the view of documents does, without fingerprints that follow."""
    changed = differences(itemized(was), itemized(now))
    if any(_field(name) == _VIEWS for name in changed):
        changed = {name: line for name, line in changed.items() if _field(name) != "data"}
    return changed


def _field(name: str) -> str:
    """The fact of a run that an itemized one is of."""
    return name.split("[")[0]


def _remedy(name: str, was: Mapping[str, Any]) -> str:
    """What to do about a fact that differs."""
    if _field(name) != _VIEWS:
        return _REMEDIES.get(_field(name), f"set {name} back, or start a new run")
    view = itemized(was).get(name)
    if view is None:
        return "read all its documents, as the run does, without documents=; or start a new run"
    return (
        f"read the view that the run is of, with dataset.source(split, name, documents={view!r}), "
        f"or in a config documents: {view}; or start a new run"
    )


def _check_past(state: SavedState, amendments: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state if the rows before it came from another recipe.

    Amendments at the state's row or later may change.
    """
    row = state.next_row
    was = _before(row, [each for each in state.amendments if "was" not in each])
    now = _before(row, json.loads(json.dumps(list(amendments))))
    if lines := differences(was, now, ("in the state:", "here:")).values():
        raise refused(
            f"the loader state is at row {row:,}; rows already consumed cannot be changed:\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\namend at row {row:,} or later, or resume from an earlier state"
        )


def _free_facts(state: SavedState, table: RowTable | None) -> list[str]:
    """Facts of a run that no row before its state depends on.

    `on_exhaustion`, since a run that halts has no state beyond that row; and `epochs`, as long as
    no source has run dry.
    """
    row = state.next_row
    amended = _before(row, [*state.amendments, *(table.amendments if table else ())])
    dry = table is not None and any(each.row < row for each in table.exhaustions)
    if amended or dry or state.run.get("on_exhaustion") not in ("halt", "refuse"):
        return ["on_exhaustion"]
    return ["on_exhaustion", "epochs"]


def _before(row: int, amendments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The amendments before a row, in words."""
    return {
        f"the amendment at row {each['row']:,}": {
            name: value for name, value in each.items() if name != "row"
        }
        for each in amendments
        if each["row"] < row
    }
