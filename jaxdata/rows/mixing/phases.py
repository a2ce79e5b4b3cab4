"""What is asked of a mixture: weights, phases of a curriculum, epochs, and their amendments."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from jaxdata.base.errors import InputError, nearest, shortened
from jaxdata.base.numbers import is_number, plain
from jaxdata.rows.packing.packed_rows import PackedRows

Weights = Mapping[str, float] | str
OnExhaustion = Literal["refuse", "halt", "renormalize"]
"""What happens where a source runs dry before its phases end."""

_RULE = re.compile(r"size\s*\*\*\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)")
_STEEPEST = 16  # 2^62 tokens to that power are a float
_DIGITS = 12  # last digits of powers differ between machines; rows must not


def check_weights(weights: Weights) -> None:
    """Refuse invalid weights: an unknown rule, a negative number, all zeros."""
    if isinstance(weights, str):
        _exponent(weights)
        return
    numbers = weights.values()
    if not all(is_number(each) and math.isfinite(each) and each >= 0 for each in numbers):
        raise InputError(f"weights {dict(weights)}: expected finite numbers, none below 0")
    if not any(weights.values()):
        raise InputError(f"weights {dict(weights)}: at least one source must be above 0")


def weights_from(weights: Weights, sizes: Mapping[str, int]) -> dict[str, float]:
    """The weight of each source, of which `sizes` are the tokens of an epoch.

    >>> weights_from("size**0.5", {"web": 900, "wiki": 100})
    {'web': 30.0, 'wiki': 10.0}
    """
    if not isinstance(weights, str):
        return dict(weights)
    exponent = _exponent(weights)
    return {name: _power(size, exponent) for name, size in sizes.items()}


def exact(number: float) -> Fraction:
    """The number as written in decimal, so that 1.1 is eleven tenths."""
    return Fraction(str(number))


def _power(size: int, exponent: float) -> float:
    if not size or exponent == 1:
        return size
    return float(f"{size**exponent:.{_DIGITS}g}")


def _exponent(rule: str) -> float:
    if rule.strip() == "proportional":
        return 1.0
    found = _RULE.fullmatch(rule.strip())
    if not found:
        raise InputError(
            f"weights {shortened(rule)!r}: expected a number for each source, like "
            "{web: 0.6, code: 0.4}, 'proportional' to their sizes, or a power of the sizes, like "
            "'size**0.5'"
        )
    if (exponent := float(found[1])) > _STEEPEST:
        raise InputError(f"weights {shortened(rule)!r}: expected a power of at most {_STEEPEST}")
    return exponent


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
        for name, value in vars(self).copy().items():
            given = plain(value) if name == "weights" else _checked_budget(name, plain(value))
            object.__setattr__(self, name, given)
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
        if self.steps is None or self.batch_size is None:
            return self.rows
        return self.steps * self.batch_size

    @property
    def numbers(self) -> Mapping[str, float]:
        """Its weights, which must be numbers, as after `Recipe.weighed`."""
        assert not isinstance(self.weights, str), f"weights {self.weights!r} are not weighed yet"
        return self.weights

    def weight(self, name: str) -> float:
        """The weight of a source; 0 by default."""
        return self.numbers.get(name, 0)

    def after(self, rows: int, seq_len: int) -> "Phase":
        """The phase without its first `rows` of `seq_len` slots, in the same unit."""
        budget = self.budget(seq_len)
        if budget is None:
            return self
        remaining = budget - rows
        if self.tokens is not None:
            return replace(self, tokens=remaining * seq_len)
        return replace(self, rows=remaining, steps=None, batch_size=None)


def _checked_budget(name: str, value: Any) -> Any:
    """A budget as it is; 3e6 rows as the whole number that they are."""
    if value is None:
        return None
    whole = name != "tokens"
    if not is_number(value) or not 0 < value < math.inf or (whole and value != int(value)):
        kind = "a whole number of at least 1" if whole else "a number above 0"
        raise InputError(f"a phase of {name}={value!r}: expected {kind}")
    return int(value) if whole else value


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


@dataclass(frozen=True)
class Recipe:
    """The request for a mixture."""

    phases: Sequence[Phase]
    epochs: Mapping[str, float]
    """most epochs of a source; 1 by default"""
    on_exhaustion: str

    def check(self, names: Sequence[str]) -> None:
        """Refuse a recipe that is invalid for sources of these names."""
        check_phases(self.phases)
        for number, phase in enumerate(self.phases):
            if not isinstance(phase.weights, str):
                check_names(names, phase.weights, f"phase {number} weighs")
        check_names(names, self.epochs, "epochs names")
        for name, times in self.epochs.items():
            if not is_number(times) or not 0 <= times < math.inf:
                raise InputError(f"epochs of {name!r}: {times!r}; expected a number of at least 0")

    def epochs_of(self, name: str) -> Fraction:
        """Most epochs of a source."""
        return exact(self.epochs.get(name, 1))

    def weighed(self, sizes: Mapping[str, int]) -> list[Phase]:
        """The phases with a number for each source, whose epochs have `sizes` tokens."""
        phases = [replace(each, weights=weights_from(each.weights, sizes)) for each in self.phases]
        for name, size in sizes.items():
            if not size and any(phase.weight(name) for phase in phases):
                raise InputError(f"source {name!r} has no rows to train on, but a phase weighs it")
        return phases


class Amendment(NamedTuple):
    """A change of the recipe; None for what stays."""

    tables: Mapping[str, PackedRows]
    """sources that are new or repacked"""
    phases: Sequence[Phase] | None = None
    epochs: Mapping[str, float] | None = None
    on_exhaustion: str | None = None
    weights: Weights | None = None
    """of the phase that is under way there, for the rest of it"""
    asked_at: int | None = None
    """next row of the running loader that asked for the weights; None where they were planned"""

    def joined(self, later: "Amendment") -> "Amendment":
        """Both in one; the later one wins where both change the same."""
        return Amendment(
            {**self.tables, **later.tables},
            self.phases if later.phases is None else later.phases,
            {**(self.epochs or {}), **(later.epochs or {})} or None,
            later.on_exhaustion or self.on_exhaustion,
            *(self[4:] if later.weights is None else later[4:]),
        )
