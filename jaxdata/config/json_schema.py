"""The JSON Schema of a config, from which editors complete and check the YAML."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema, IntSchema

from jaxdata.config.config_fields import Config

_NUMBER = r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$"
"""a number as `config_values` reads it; to editors, which read YAML 1.2, `1_000` is a text"""


class _Schema(GenerateJsonSchema):
    """Numbers may be written as people write them; objects have no second title."""

    def int_schema(self, schema: IntSchema) -> JsonSchemaValue:
        return _also_as_text(super().int_schema(schema))

    def float_schema(self, schema: FloatSchema) -> JsonSchemaValue:
        return _also_as_text(super().float_schema(schema))

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def config_schema() -> dict[str, Any]:
    """The JSON Schema of all fields, as `jaxdata config --schema` writes it."""
    schema = Config.model_json_schema(schema_generator=_Schema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "jaxdata config"}


def _also_as_text(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {**schema, "type": [schema["type"], "string"], "pattern": _NUMBER}
