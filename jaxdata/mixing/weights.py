"""Weights of sources: numbers, or a rule that computes them from the sources' sizes; their unit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, get_args

from jaxdata.errors import InputError
from jaxdata.scalars import is_number
from jaxdata.wording import shortened

Weights = Mapping[str, float] | str
WeighBy = Literal["tokens", "loss_tokens"]
"""What weights are shares of: trained tokens, or those that have loss after stored masks."""

_RULE = re.compile(r"size\s*\*\*\s*([0-9.]+(?:e-?[0-9]+)?)")
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


def check_weigh_by(unit: str) -> None:
    """Refuse an unknown unit of weights."""
    if unit not in get_args(WeighBy):
        raise InputError(f"weigh_by={unit!r}: expected {' or '.join(map(repr, get_args(WeighBy)))}")


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
    try:
        assert found
        exponent = float(found[1])
    except (AssertionError, ValueError):
        raise InputError(
            f"weights {shortened(rule)!r}: expected a number for each source, like "
            "{web: 0.6, code: 0.4}, 'proportional' to their sizes, or a power of the sizes, like "
            "'size**0.5'"
        ) from None
    if exponent > _STEEPEST:
        raise InputError(f"weights {shortened(rule)!r}: expected a power of at most {_STEEPEST}")
    return exponent
