"""What weights may be: a number for each source, or a rule that makes them of their sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from jaxdata.errors import InputError

__all__ = ["Weights", "check_weights", "exact", "weights_from"]

Weights = Mapping[str, float] | str

_RULE = re.compile(r"size\s*\*\*\s*([0-9.]+(?:e-?[0-9]+)?)")
_DIGITS = 12  # powers differ in their last digits between machines, rows must not


def check_weights(weights: Weights) -> None:
    """Refuse weights that make no sense: an unknown rule, a negative number, all of them 0."""
    if isinstance(weights, str):
        _exponent(weights)
        return
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()):
        raise InputError(f"weights {dict(weights)}: expected finite numbers, none below 0")
    if not any(weights.values()):
        raise InputError(f"weights {dict(weights)}: at least one source must be above 0")


def weights_from(weights: Weights, sizes: Mapping[str, int]) -> dict[str, float]:
    """The weight of each source.

    Args:
        weights: numbers; or `"proportional"`, as the sizes are; or a temperature, `"size**0.5"`.
        sizes: trained tokens of an epoch of each source.

    >>> weights_from("size**0.5", {"web": 900, "wiki": 100})
    {'web': 30.0, 'wiki': 10.0}
    """
    if not isinstance(weights, str):
        return dict(weights)
    exponent = _exponent(weights)
    return {name: _power(size, exponent) for name, size in sizes.items()}


def exact(number: float) -> Fraction:
    """The number as it is written in decimal, so that 1.1 is eleven tenths."""
    return Fraction(str(number))


def _power(size: int, exponent: float) -> float:
    if not size or exponent == 1:
        return size
    return float(f"{size**exponent:.{_DIGITS}g}")


def _exponent(rule: str) -> float:
    if rule.strip() == "proportional":
        return 1.0
    found = _RULE.fullmatch(rule.strip())
    try:
        assert found
        return float(found[1])
    except (AssertionError, ValueError):
        raise InputError(
            f"weights {rule!r}: expected a number for each source, like {{web: 0.6, code: 0.4}}, "
            "or 'proportional' (as their sizes are), or a power of the sizes, like 'size**0.5'"
        ) from None
