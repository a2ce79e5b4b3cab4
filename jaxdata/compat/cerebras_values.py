"""Values of arguments, checked before they are used: a file may hold anything."""

from __future__ import annotations

from typing import Any

from jaxdata.errors import InputError


def flag(value: Any) -> bool:
    """True or False, also as text; raises InputError for anything else."""
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise InputError("expected True or False")
    return found


def whole(value: Any, least: int = 0) -> int:
    """A whole number, at least so large."""
    number = value if isinstance(value, int) else int(value) if str(value).isdecimal() else None
    if number is None or isinstance(value, bool) or number < least:
        raise InputError(f"expected a whole number, {least} or more")
    return number


def share(value: Any) -> float:
    """A number from 0 to 1."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise InputError("expected a number from 0 to 1")
    return number


def text(value: Any) -> str:
    """A text, which is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError("expected a text")
    return value


def any_text(value: Any) -> str:
    """A text, perhaps empty."""
    return "" if value == "" else text(value)


def token(value: Any) -> str | int:
    """A token by its text or id."""
    return whole(value) if isinstance(value, int) else text(value)


def mapping(value: Any) -> dict[str, Any]:
    """Names and values."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InputError("expected names and values")
    return value
