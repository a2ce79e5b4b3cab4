"""Phases of a curriculum: weights and budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxdata.errors import InputError
from jaxdata.mixing.weights import Weights, check_weights, exact, weights_from
from jaxdata.scalars import takes_numpy
from jaxdata.wording import nearest

OnExhaustion = Literal["refuse", "halt", "renormalize"]
"""What happens where a source runs dry before its phases end."""


@takes_numpy
@dataclass(frozen=True)
class Phase:
    """A part of training with one set of weights.

    Args:
        tokens: its budget in slots: `ceil(tokens / seq_len)` rows. Or:
        rows: its budget in rows. Or:
        weights: share of each source in the trained tokens; only proportions count. Or
            `"proportional"` to the sources' trained tokens, or `"size**0.5"`, a power of them that
            evens the sources out (a temperature).
        steps: its budget in steps of `batch_size` rows.
        batch_size: rows of a step.

    A last phase without a budget ends when one of its sources runs dry (the last one, with
    `on_exhaustion="renormalize"`).

    >>> Phase(tokens=5e9, weights={"web": 0.6, "code": 0.4}).budget(2048)
    2441407
    >>> Phase(steps=1000, batch_size=256, weights="proportional").budget(2048)
    256000
    """

    tokens: float | None = None
    rows: int | None = None
    weights: Weights = ()  # type: ignore[assignment]
    steps: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.tokens, self.rows, self.steps)) > 1:
            raise InputError(
                f"a phase of tokens={self.tokens}, rows={self.rows}, steps={self.steps}: give "
                "exactly one of tokens, rows and steps"
            )
        if (self.steps is None) != (self.batch_size is None):
            raise InputError(
                f"a phase of steps={self.steps}, batch_size={self.batch_size}: give "
                "both, as batch_size turns steps into rows"
            )
        for name in ("tokens", "rows", "steps", "batch_size"):
            object.__setattr__(self, name, _checked_budget(name, getattr(self, name)))
        if not isinstance(self.weights, str):
            object.__setattr__(self, "weights", dict(self.weights))
        check_weights(self.weights)

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return f"Phase({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def budget(self, seq_len: int) -> int | None:
        """Rows of this phase; None if it runs until a source is exhausted."""
        if self.tokens is not None:
            return math.ceil(exact(self.tokens) / seq_len)
        return self.rows if self.steps is None else self.steps * (self.batch_size or 1)

    def weighed(self, sizes: Mapping[str, int]) -> Phase:
        """The phase with numbers as weights, where `sizes` are the sources' trained tokens."""
        return replace(self, weights=weights_from(self.weights, sizes))

    @property
    def numbers(self) -> Mapping[str, float]:
        """Its weights, which must be numbers, as after `weighed`."""
        assert not isinstance(self.weights, str), f"weights {self.weights!r} are not weighed yet"
        return self.weights

    def weight(self, name: str) -> float:
        """The weight of a source; 0 by default."""
        return self.numbers.get(name, 0)

    def after(self, rows: int, seq_len: int) -> Phase:
        """The phase without its first `rows` of `seq_len` slots, in the same unit."""
        budget = self.budget(seq_len)
        if budget is None:
            return self
        remaining = budget - rows
        if self.tokens is not None:
            return replace(self, tokens=remaining * seq_len)
        return replace(self, rows=remaining, steps=None, batch_size=None)


def check_phases(phases: Sequence[Phase]) -> None:
    """Refuse a curriculum without phases, or with an unbudgeted phase before the last."""
    if not phases:
        raise InputError("a mixture needs at least one Phase(tokens=…, weights={…})")
    for number, phase in enumerate(phases[:-1]):
        if phase.budget(1) is None:
            raise InputError(
                f"phase {number} needs a budget: tokens, rows or steps; only the last may run "
                "until a source runs dry"
            )


def check_names(names: Sequence[str], given: Mapping[str, Any], what: str) -> None:
    """Refuse a name that is not a source, suggesting the nearest."""
    for name in given:
        if name not in names:
            raise InputError(
                f"{what} {name!r}, not one of the sources {', '.join(map(repr, names))}"
                f"{nearest(name, names)}"
            )


def check_epochs(epochs: Mapping[str, float]) -> None:
    """Refuse invalid numbers of epochs."""
    for name, times in epochs.items():
        if not _is_number(times) or not 0 <= times < math.inf:
            raise InputError(f"epochs of {name!r}: {times!r}; expected a number of at least 0")


def _checked_budget(name: str, value: Any) -> Any:
    """A budget as it is; 3e6 rows as the whole number that they are."""
    if value is None:
        return None
    whole = name != "tokens"
    if not _is_number(value) or not 0 < value < math.inf or (whole and value != int(value)):
        kind = "a whole number of at least 1" if whole else "a number above 0"
        raise InputError(f"a phase of {name}={value!r}: expected {kind}")
    return int(value) if whole else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
