"""The base of every section of a config: strict models, and counts in scientific notation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function


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


Count = Annotated[int, Field(ge=1), BeforeValidator(whole)]


@dataclass(frozen=True)
class OneOf:
    """Accept a name of a registry only; the registry is looked up when a value is checked.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(Annotated[str, OneOf({"pad": 1, "crop": 2})]).validate_python("crop")
    'crop'
    """

    names: Collection[str]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | {"enum": sorted(self.names)}

    def _check(self, value: str) -> str:
        return known(value, self.names)


def known(value: str, names: Collection[str]) -> str:
    """A value that is one of some names."""
    if value not in names:
        *others, last = map(repr, sorted(names))
        raise ValueError(f"should be {', '.join(others)} or {last}, got {value!r}")
    return value
