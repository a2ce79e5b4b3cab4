"""A config with its fields, what each means and where it was set, as YAML or a JSON Schema."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema, IntSchema

from jaxdata.base.settings import told
from jaxdata.config.config_fields import Config, variable_of
from jaxdata.config.config_reader import ConfigValues, Location, read_config_values, section_in

_NUMBER = r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$"
"""a number as `config_reader` reads it; to editors, which read YAML 1.2, `1_000` is a text"""
_LONG = 2**30  # no value is broken into lines
_WIDTH = 100


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


def annotated(
    config: str | None = None, overrides: Mapping[str, Any] | None = None, *, whole: bool = False
) -> str:
    """A config as YAML: each field with its meaning above it, and where it was set beside it.

    Args:
        config: a file, or the name of a config shipped with jaxdata; None for the fields with
            their defaults, of which `dataset` is to be filled in.
        overrides: fields that are set, by dotted names.
        whole: also write the advanced fields that nobody set, so that no later default changes
            anything.

    >>> print(annotated().splitlines()[2])
    dataset: null  # default
    """
    read, values = Config.model_construct(), ConfigValues({}, "")
    if config is not None or overrides:
        read, values = read_config_values(config or {}, overrides)
    lines = list(_section(read, (), values, whole))
    more = [] if whole else ["", "# fields for experts are left out: jaxdata config --all"]
    return "\n".join([*lines, *more]).strip() + "\n"


def _section(
    section: BaseModel, above: Location, values: ConfigValues, whole: bool
) -> Iterator[str]:
    """The lines of a section; `values` know where its fields were set."""
    for name, field in type(section).model_fields.items():
        here, value = (*above, name), getattr(section, name)
        given = name in section.model_fields_set
        if not (whole or given or not told(field, "advanced")):
            continue
        indent = "  " * len(above)
        if isinstance(value, BaseModel) and type(value) is field.annotation:
            yield ""
            yield from _comment(str(type(value).__doc__).partition("\n")[0], indent)
            yield f"{indent}{name}:"
            yield from _section(value, here, values, whole)
            continue
        yield from _comment(_meaning(field), indent)
        plain = section.model_dump(include={name}, exclude_unset=given).get(name, value)
        first, *items = _yaml_lines(plain)
        default = field.get_default(call_default_factory=True)
        other = "" if default == value else f"; default {_yaml(default)}"
        place = values.place(here) + other if given else "default"
        wins = variable_of(".".join(map(str, here[1:]))) if here[0] == "storage" else None
        place += f"; {wins} is set, which wins" if wins else ""
        yield f"{indent}{name}: {first}".rstrip() + f"  # {place}"
        yield from (f"{indent}  {item}" for item in items)
        inner = section_in(field.annotation)
        for each, part in inner.model_fields.items() if inner else ():  # of each of its items
            if whole or not told(part, "advanced"):
                yield from _comment(f"  {each}: {_meaning(part)}", indent)


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
    names = sorted(get_args(field.annotation) if get_origin(field.annotation) is Literal else ())
    shown = f" ({' | '.join(map(str, names))})" if names else ""
    return f"{field.description or 'as above'}{shown}"


def _comment(text: str, indent: str) -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=mark, subsequent_indent=f"{mark}  ", break_long_words=False
    )
