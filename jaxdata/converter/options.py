"""Options of a conversion: fields of its models, described once for Python and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from jaxdata.base.numbers import is_number, is_whole

OPTIONS, INPUT, TASK = "Options", "What is read", "What records become"
CLEANING, SPLITS = "Cleaning (off by default)", "Splits and output"
LIMITS, EXECUTION = "Safety limits", "Execution"
"""The headings of `jaxdata convert --help`."""


def split_keys(keys: Any) -> Any:
    """Keys, or a text with commas between them."""
    return tuple(filter(None, map(str.strip, keys.split(",")))) if isinstance(keys, str) else keys


Keys = Annotated[tuple[str, ...], BeforeValidator(split_keys)]
"""Several keys, or a text with commas between them."""


def option(
    default: Any,
    description: str,
    *,
    heading: str = TASK,
    metavar: str | None = None,
    shown: str | None = None,
    least: int | None = None,
    hidden: bool = False,
    escapes: bool = False,
    **constraints: Any,
) -> Any:
    r"""Declare a field of a model that users may set.

    Args:
        default: its value where nobody sets it.
        description: what it does, in a sentence that is understood alone.
        heading: where `--help` lists it.
        metavar: what `--help` calls its value.
        shown: what `--help` gives as the default, where the value does not say it.
        least: its smallest value.
        hidden: leave it out of `--help`.
        escapes: take \n and \t, as typed, for a new line and a tab.
        **constraints: of :func:`pydantic.Field`.
    """
    extra = {"heading": heading, "metavar": metavar, "shown": shown}
    more = {"least": least, "hidden": hidden, "escapes": escapes}
    if isinstance(default, type):
        constraints["default_factory"] = default
    else:
        constraints["default"] = default
    return Field(description=description, json_schema_extra={**extra, **more}, **constraints)


class OptionModel(BaseModel):
    """A model whose numbers are numbers: no flags and no texts; whole ones are no floats."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_number(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        if expected := _expected(field, value):
            raise PydanticCustomError("number", "expected {expected}", {"expected": expected})
        return value


def _expected(field: FieldInfo, value: Any) -> str | None:
    """What a field expects in the place of a value that is no number, or too small."""
    kinds, least = kinds_of(field), _told(field, "least")
    if not {int, float}.intersection(kinds) or (value is None and NoneType in kinds):
        return None
    if isinstance(value, str) and str in kinds:
        return None
    if is_number(value) if float in kinds else is_whole(value):
        return None if least is None or value >= least else f"at least {least:,}"
    named = {int: "a whole number", float: "a number", str: "a text", NoneType: "None"}
    return " or ".join(named[kind] for kind in kinds)


def kinds_of(field: FieldInfo) -> tuple[Any, ...]:
    """The types of its values, None's own among them."""
    union = get_origin(field.annotation) in (Union, UnionType)
    return get_args(field.annotation) if union else (field.annotation,)


def _told(field: FieldInfo, name: str) -> Any:
    """What :func:`option` was told of a field that pydantic does not know."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


@dataclass(frozen=True)
class Option:
    """An option, as one model or several have it."""

    name: str
    fields: Mapping[str, FieldInfo]  # by the name of the task that has it, or ""

    @property
    def field(self) -> FieldInfo:
        """The field of the first task that has it."""
        return next(iter(self.fields.values()))

    def told(self, name: str) -> Any:
        """What :func:`option` was told of the field that pydantic does not know."""
        return _told(self.field, name)

    @property
    def help(self) -> str:
        """What it does, for which tasks, and its default."""
        tasks: dict[str, list[str]] = {}
        for task, field in self.fields.items():
            tasks.setdefault(field.description or "", []).append(task)
        told = [
            f"{', '.join(names)}: {text}" if names[0] else text for text, names in tasks.items()
        ]
        defaults = {task: _shown(field) for task, field in self.fields.items()}
        if not any(defaults.values()):
            return " ".join(told)
        same = len(set(defaults.values())) == 1
        listed = ", ".join(f"{text} ({task})" for task, text in defaults.items() if text)
        return f"{' '.join(told)}  [default: {next(iter(defaults.values())) if same else listed}]"


def _shown(field: FieldInfo) -> str:
    if shown := _told(field, "shown"):
        return str(shown)
    value = field.get_default(call_default_factory=True)
    return str(value) if isinstance(value, int | float | str) and value is not False else ""


def options_of(models: Mapping[str, Iterable[type[BaseModel]]]) -> dict[str, Option]:
    """The options of models, by name; those of several tasks are one."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for task, some in models.items():
        for model in some:
            for name, field in model.model_fields.items():
                if field.description:
                    found.setdefault(name, {})[task] = field
    return {name: Option(name, fields) for name, fields in found.items()}
