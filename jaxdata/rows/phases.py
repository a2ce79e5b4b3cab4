"""What a curriculum asks for: phases with weights and budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from jaxdata.errors import InputError
from jaxdata.rows.weights import Weights, check_weights, exact, weights_from

__all__ = ["Phase", "check_names", "check_phases"]


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one set of weights.

    Args:
        tokens: its budget in slots: `ceil(tokens / seq_len)` rows. Or:
        rows: its budget in rows. Or:
        weights: share of each source in the trained tokens; only their proportions count. Or
            `"proportional"`: as the sources' trained tokens are. Or `"size**0.5"`: as a power of
            them is, which evens the sources out (a temperature).
        steps: its budget in steps, of
        batch_size: rows each.

    A last phase without a budget goes on until a source of it runs dry (the last one, with
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
                f"a phase of tokens={self.tokens}, rows={self.rows}, steps={self.steps}: give its "
                "budget in tokens, rows or steps, one of them"
            )
        if (self.steps is None) != (self.batch_size is None):
            raise InputError(
                f"a phase of steps={self.steps}, batch_size={self.batch_size}: steps are turned "
                "into rows by the batch_size that is given with them; give both"
            )
        for name in ("tokens", "rows", "steps", "batch_size"):
            _check_budget(name, getattr(self, name))
        if not isinstance(self.weights, str):
            object.__setattr__(self, "weights", dict(self.weights))
        check_weights(self.weights)

    def budget(self, seq_len: int) -> int | None:
        """Rows of this phase; None where it goes on until a source runs dry."""
        if self.tokens is not None:
            return math.ceil(exact(self.tokens) / seq_len)
        return self.rows if self.steps is None else self.steps * (self.batch_size or 1)

    def weighed(self, sizes: Mapping[str, int]) -> Phase:
        """The same with a number for each source, whose trained tokens are `sizes`."""
        return replace(self, weights=weights_from(self.weights, sizes))

    @property
    def numbers(self) -> Mapping[str, float]:
        """Its weights where they are numbers, as those of a phase that was `weighed` are."""
        assert not isinstance(self.weights, str), f"weights {self.weights!r} are not weighed yet"
        return self.weights

    def weight(self, name: str) -> float:
        """The weight of a source; 0 where none is given."""
        return self.numbers.get(name, 0)

    def after(self, rows: int, seq_len: int) -> Phase:
        """What is left of it after its first `rows` of `seq_len` slots, in the same unit."""
        budget = self.budget(seq_len)
        if budget is None:
            return self
        left = budget - rows
        if self.tokens is not None:
            return replace(self, tokens=left * seq_len)
        return replace(self, rows=left, steps=None, batch_size=None)


def check_phases(phases: Sequence[Phase]) -> None:
    """Refuse a curriculum without phases, or with one without end that is not the last."""
    if not phases:
        raise InputError("a mixture needs at least one Phase(tokens=…, weights={…})")
    for number, phase in enumerate(phases[:-1]):
        if phase.budget(1) is None:
            raise InputError(
                f"phase {number} needs a budget: tokens, rows or steps; only the last may go on "
                "until a source runs dry"
            )


def check_names(names: Sequence[str], given: Mapping[str, Any], what: str) -> None:
    """Refuse a name that is no source, with the nearest that is."""
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"{what} {name!r}, which is none of the sources {', '.join(map(repr, names))}{hint}"
            )


def _check_budget(name: str, value: Any) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf or (name != "tokens" and value != int(value)):
        kind = "a number above 0" if name == "tokens" else "a whole number of at least 1"
        raise InputError(f"a phase of {name}={value!r}: expected {kind}")
