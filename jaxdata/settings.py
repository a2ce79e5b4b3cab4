"""The base of every section of a config: strict models, and counts in scientific notation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Settings(BaseModel):
    """A frozen section of a config; rejects unknown fields and silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def whole(value: object) -> object:
    """Read `5e9`, a float in YAML and a string in some shells, as the count 5,000,000,000."""
    if isinstance(value, str):
        try:
            value = float(value.replace("_", ""))
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(whole), Field(ge=1)]


def one_of(names: Collection[str]) -> AfterValidator:
    """Accept a name of a registry only; the registry is looked up when a value is checked.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(Annotated[str, one_of({"pad": 1, "crop": 2})]).validate_python("crop")
    'crop'
    """
    return AfterValidator(lambda value: known(value, names))


def known(value: str, names: Collection[str]) -> str:
    """A value that is one of some names."""
    if value not in names:
        *others, last = map(repr, sorted(names))
        raise ValueError(f"should be {', '.join(others)} or {last}, got {value!r}")
    return value
