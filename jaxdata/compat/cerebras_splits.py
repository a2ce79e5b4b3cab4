"""Splits of a file of release 2.3 and later, as shares of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jaxdata.compat.cerebras_values import mapping, whole
from jaxdata.errors import InputError


def split_ratio(given: Mapping[str, Any]) -> str:
    """The splits of `data_splits` and `context_splits` as `--split-ratio`.

    Documents for rows of one length are a split of their own, named after the length.

    >>> contexts = {"MSL_List": ["0.5K", 1024], "split_fractions": ["1/4", 0.75]}
    >>> split_ratio({"context_splits": contexts})
    'train-512=0.25,train-1024=0.75'
    """
    found = dict(_shares(given))
    return ",".join(
        f"{name}={float(share):.9f}".rstrip("0").rstrip(".") for name, share in found.items()
    )


def row_lengths(given: Mapping[str, Any]) -> list[int]:
    """The lengths of rows in all `context_splits`; empty without."""
    splits = mapping(given.get("data_splits") or {}).values()
    contexts = [
        given.get("context_splits"),
        *(mapping(one).get("context_splits") for one in splits),
    ]
    return sorted({length for one in contexts if one for length, _ in _contexts(one)})


def _shares(given: Mapping[str, Any]) -> Iterator[tuple[str, Fraction]]:
    splits = mapping(given.get("data_splits") or {"train": {"split_fraction": 1}})
    for name, settings in splits.items():
        share = _fraction(mapping(settings).get("split_fraction"))
        contexts = settings.get("context_splits") or given.get("context_splits")
        if not contexts:
            yield name, share
        else:
            yield from ((f"{name}-{length}", share * part) for length, part in _contexts(contexts))


def _contexts(value: Any) -> list[tuple[int, Fraction]]:
    contexts = mapping(value)
    lengths, parts = contexts.get("MSL_List"), contexts.get("split_fractions")
    if not (isinstance(lengths, list) and isinstance(parts, list) and len(lengths) == len(parts)):
        raise InputError("context_splits: expected MSL_List and split_fractions, equally long")
    return [(_length(one), _fraction(part)) for one, part in zip(lengths, parts, strict=True)]


def _length(value: Any) -> int:
    thousands = str(value).upper().removesuffix("K")
    if thousands == str(value):
        return whole(value, 1)
    try:
        return whole(int(Fraction(thousands) * 1_024), 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"MSL_List: {value!r}: expected a length such as 2048 or 2K") from None


def _fraction(value: Any) -> Fraction:
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise InputError(f"a share of {value!r}: expected a number from 0 to 1")
    return share
