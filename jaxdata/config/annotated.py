"""A config with its fields, what each means and where it was set, as YAML or a JSON Schema."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema, IntSchema

from jaxdata.base.settings import OneOf, told
from jaxdata.config.config_fields import Config
from jaxdata.config.config_reader import ConfigValues, Location, section_in
from jaxdata.config.storage_section import variable_of

_NUMBER = r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$"
"""a number as `config_reader` reads it; to editors, which read YAML 1.2, `1_000` is a text"""


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


_LONG = 2**30  # no value is broken into lines


@dataclass(frozen=True)
class _Writer:
    """Writes the lines of one section after the other."""

    values: ConfigValues | None
    """None where only defaults are shown"""
    width: int
    whole: bool
    """whether advanced fields are written that nobody set"""

    def section(self, section: BaseModel, above: Location) -> Iterator[str]:
        for name, field in type(section).model_fields.items():
            here = (*above, name)
            if self.whole or not told(field, "advanced") or self._given(section, here):
                yield from self._field(section, name, field, here)

    def _field(
        self, section: BaseModel, name: str, field: FieldInfo, here: Location
    ) -> Iterator[str]:
        indent, value = "  " * (len(here) - 1), getattr(section, name)
        if isinstance(value, BaseModel):
            yield ""
            yield from _comment(_first_line(type(value)), indent, self.width)
            yield f"{indent}{name}:"
            yield from self.section(value, here)
            return
        yield from _comment(_meaning(field), indent, self.width)
        given = section.model_dump(include={name}, exclude_unset=name in section.model_fields_set)
        first, *items = _yaml_lines(given.get(name, value))
        yield f"{indent}{name}: {first}".rstrip() + f"  # {self._where(section, here)}"
        yield from (f"{indent}  {item}" for item in items)
        if (inner := section_in(field.annotation)) is not None:
            yield from self._parts(inner, indent)

    def _parts(self, section: type[BaseModel], indent: str) -> Iterator[str]:
        """The fields of each item of a list or mapping."""
        for name, field in section.model_fields.items():
            if self.whole or not told(field, "advanced"):
                yield from _comment(f"  {name}: {_meaning(field)}", indent, self.width)

    def _given(self, section: BaseModel, here: Location) -> bool:
        """Whether the config sets a field."""
        return self.values is not None and here[-1] in section.model_fields_set

    def _where(self, section: BaseModel, here: Location) -> str:
        """Where a field was set, its default if that is another, and what wins over it."""
        name, field = str(here[-1]), type(section).model_fields[str(here[-1])]
        place = "default"
        if self.values is not None and self._given(section, here):
            default = field.get_default(call_default_factory=True)
            place = self.values.place(here)
            if default != getattr(section, name):
                place += f"; default {_yaml(default)}"
        dotted = ".".join(map(str, here))
        variable = variable_of(dotted.removeprefix("storage.")) if here[0] == "storage" else None
        return place if variable is None else f"{place}; {variable} is set, which wins"


def annotated(
    config: Config, values: ConfigValues | None = None, width: int = 100, *, whole: bool = False
) -> str:
    """A config as YAML: each field with its meaning above it, and where it was set beside it.

    Args:
        config: the config.
        values: what it was made of; None where it has only defaults.
        width: columns that comments are wrapped to.
        whole: also write the advanced fields that nobody set, so that no later default changes
            anything.
    """
    lines = list(_Writer(values, width, whole).section(config, ()))
    more = [] if whole else ["", "# fields for experts are left out: jaxdata config --all"]
    return "\n".join([*lines, *more]).strip() + "\n"


def defaults(width: int = 100, *, whole: bool = False) -> str:
    """The fields with their defaults, in the same way; `dataset` is to be filled in.

    >>> print(defaults().splitlines()[2])
    dataset: null  # default
    """
    return annotated(Config.model_construct(), None, width, whole=whole)


def _yaml_lines(value: Any) -> list[str]:
    """A value as YAML, or nothing and then each of its items, where these have fields."""
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return ["", *(f"{_yaml(name)}: {_yaml(item)}" for name, item in value.items())]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return ["", *(f"- {_yaml(item)}" for item in value)]
    return [_yaml(value)]


def _yaml(value: Any) -> str:
    plain = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=_LONG)
    return plain.removesuffix("...\n").strip()


def _meaning(field: FieldInfo) -> str:
    """The description of a field, and its values if these are a few names."""
    registered = [name for each in field.metadata if isinstance(each, OneOf) for name in each.names]
    literal = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    names = sorted(registered or literal)
    shown = f" ({' | '.join(map(str, names))})" if names else ""
    return f"{field.description or 'as above'}{shown}"


def _first_line(section: type[BaseModel]) -> str:
    return str(section.__doc__).partition("\n")[0]


def _comment(text: str, indent: str, width: int) -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(
        text, width, initial_indent=mark, subsequent_indent=f"{mark}  ", break_long_words=False
    )
