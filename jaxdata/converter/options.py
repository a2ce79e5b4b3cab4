"""Options of a conversion: fields of its models, described once for Python and the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from jaxdata.base.settings import setting, told

HEADINGS = (
    INPUT := "What is read",
    TOKENS := "Tokens",
    TASK := "What records become",
    CLEANING := "Cleaning (off by default)",
    SPLITS := "Splits and output",
    EXECUTION := "Execution",
)
"""Those of `jaxdata convert --help-all`."""


def split_keys(keys: Any) -> Any:
    """Keys, or a text with commas between them."""
    if isinstance(keys, str):
        return tuple(filter(None, map(str.strip, keys.split(","))))
    return tuple(keys) if isinstance(keys, list) else keys


key_setting = partial(setting, heading=INPUT, metavar="KEY")
"""Declares a field that names what is read of each record."""
Keys = Annotated[tuple[str, ...], BeforeValidator(split_keys)]
"""Several keys, or a text with commas between them."""


@dataclass(frozen=True)
class Option:
    """An option, as one model or several have it."""

    name: str
    fields: Mapping[str, FieldInfo]  # by the name of the task that has it, or ""

    @property
    def field(self) -> FieldInfo:
        """The field of the first task that has it."""
        return next(iter(self.fields.values()))

    @property
    def heading(self) -> str:
        """Where `--help` lists it."""
        return told(self.field, "heading") or TASK

    @property
    def help(self) -> str:
        """What it does, for which tasks, and its default."""
        tasks: dict[str, list[str]] = {}
        for task, field in self.fields.items():
            tasks.setdefault(_help(field), []).append(task)
        return " ".join(f"{', '.join(of)}: {text}" if of[0] else text for text, of in tasks.items())

    @property
    def helps(self) -> dict[str, str]:
        """The same in each of the tasks that have it; empty where it is of no task."""
        return {task: _help(field) for task, field in self.fields.items() if task}


def _help(field: FieldInfo) -> str:
    default = told(field, "shown")
    if not default:
        value = field.get_default(call_default_factory=True)
        default = value if isinstance(value, int | float | str) and value is not False else ""
    return f"{field.description}" + (f"  [default: {default}]" if default != "" else "")


def options_of(models: Mapping[str, Iterable[type[BaseModel]]]) -> dict[str, Option]:
    """The options of models, by name; those of several tasks are one."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for task, some in models.items():
        for model in some:
            for name, field in model.model_fields.items():
                if field.description:
                    found.setdefault(name, {})[task] = field
    return {name: Option(name, fields) for name, fields in found.items()}
