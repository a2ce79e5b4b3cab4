"""From plain values to a validated `Config`; errors name the line and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from jaxdata.config.config_fields import Config
from jaxdata.config.config_values import ConfigValues, Location, read_values
from jaxdata.config.curriculum import TAGS
from jaxdata.errors import ConfigError
from jaxdata.scalars import takes_numpy
from jaxdata.wording import shortened

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping, like {web: 0.6, code: 0.4}",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a section with fields",
    "string_type": "a string",
}


@takes_numpy
def load_config(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Read and validate a config.

    Args:
        config: a YAML file, the name of a config shipped with jaxdata (`"demo"`), a mapping of
            the same form, or a `Config`.
        overrides: fields to set, by dotted names (`{"pack.seq_len": 4096}`) or nested
            (`{"pack": {"seq_len": 4096}}`); a number selects an item of a list
            (`{"curriculum.0.tokens": 5e9}`).

    Raises:
        ConfigError: the file is missing or not YAML, or fields are unknown or of the wrong type;
            the message lists all of them, with their lines.

    >>> load_config({"dataset": "data/demo"}, {"pack.seq_len": 4096}).pack.seq_len
    4096
    """
    return read_config_values(config, overrides)[0]


def read_config_values(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any] | None = None
) -> tuple[Config, ConfigValues]:
    """The same, and the values it was made of, which know where each field was set."""
    if isinstance(config, Config):
        config = config.model_dump(exclude_unset=True)
    values = read_values(config)
    values.override(overrides or {})
    try:
        return Config.model_validate(values.values), values
    except ValidationError as error:
        found = [_explain(problem, values) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(found)) from None


def _explain(problem: Mapping[str, Any], values: ConfigValues) -> str:
    location: Location = tuple(part for part in problem["loc"] if part not in TAGS)
    name, kind = ".".join(map(str, location)), problem["type"]
    given = shortened(repr(problem["input"]))
    if kind == "extra_forbidden":
        says = f"unknown field {name!r}; {_suggest(location)}"
    elif kind == "missing":
        says = f"{name} is missing: it is required"
    elif kind == "value_error":
        says = f"{name}: {problem['ctx']['error']}" if name else str(problem["ctx"]["error"])
    elif kind in _EXPECTED:
        says = f"{name}: expected {_EXPECTED[kind]}, got {given}"
    else:
        says = f"{name}: {problem['msg'].replace('Input should', 'should')}, got {given}"
    return f"{says} ({values.place(location)})"


def _suggest(location: Location) -> str:
    *parents, name = location
    siblings = list(_model_at(parents).model_fields)
    close = difflib.get_close_matches(str(name), siblings, n=1)
    close = close or [path for path in _all_fields(Config) if path.split(".")[-1] == name][:1]
    return f"did you mean {close[0]!r}?" if close else f"known fields: {', '.join(siblings)}"


def _model_at(location: list[str | int]) -> type[BaseModel]:
    model: type[BaseModel] = Config
    for name in location:
        if name in model.model_fields:  # otherwise the number of an item, or a key of the user's
            model = section_in(model.model_fields[str(name)].annotation) or model
    return model


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section within an annotation: Phase in `list[Phase] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def _all_fields(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield above + name
        section = section_in(field.annotation)
        if section and not str(field.annotation).startswith(("list", "dict")):
            yield from _all_fields(section, f"{above}{name}.")
