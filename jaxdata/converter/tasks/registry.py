"""Which tasks there are: every module of this folder that registers one."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import to_jsonable_python

from jaxdata.base.errors import InputError
from jaxdata.base.settings import refusal
from jaxdata.converter.options import Option, options_of
from jaxdata.converter.tasks.base import Clean, Settings, Task
from jaxdata.tokenizers import Tokenizer

_DEFAULT = "lm"
_tasks: dict[str, _Registered] = {}


class _Registered(NamedTuple):
    settings: type[Settings]
    task: type[Task]


def register(settings: type[Settings], task: type[Task]) -> None:
    """Make a task known by the default of its settings' `name`; a module does so when imported."""
    _tasks[settings.model_fields["name"].default] = _Registered(settings, task)


@cache
def _import_all() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def _registered(name: str) -> _Registered:
    _import_all()
    if name not in _tasks:
        raise InputError(f"task={name!r}; expected one of {', '.join(task_names())}")
    return _tasks[name]


def task_names() -> dict[str, str]:
    """The names of all tasks, the default first, and what records become in each."""
    _import_all()
    names = sorted(_tasks, key=lambda name: (name != _DEFAULT, name))
    return {name: _tasks[name].settings.makes for name in names}


def task_options(*names: str) -> dict[str, Option]:
    """The options of some tasks, or of all, by name."""
    own = {name: [_registered(name).settings] for name in names or task_names()}
    return options_of(own) | options_of({"": [Settings]})


def check_takes(task: str, option: str, why: str) -> None:
    """Raise InputError unless a task has an option; `why` says why not every task has it."""
    _registered(task)
    takers = [name for name, known in _tasks.items() if option in known.settings.model_fields]
    if task not in takers:
        raise InputError(
            f"--{option.replace('_', '-')} is for --task {' and '.join(sorted(takers))}, not for "
            f"task {task!r}: {why}"
        )


def make_settings(task: str, tokenizer: Tokenizer, options: Mapping[str, Any]) -> Settings:
    """Make the settings of a task.

    Raises:
        InputError: there is no such task or option, or its value is wrong.
    """
    model, given = _registered(task).settings, dict(options)
    if given.get("text_key") == "text":  # as it is where nobody gave it
        del given["text_key"]
    try:
        return model(**model.completed(given, tokenizer))
    except ValidationError as error:
        raise InputError(_wrong(task, model, error)) from None


def make_task(settings: Settings, tokenizer: Tokenizer, clean: Clean | None = None) -> Task:
    """Make the task of some settings; `clean` is done to every text before all else.

    Raises:
        InputError: the tokenizer lacks what the task needs, or a chat template does not work.
        MissingExtra: jinja2, which chat templates need, is not installed.
    """
    return _registered(settings.name).task(settings, tokenizer, clean)


def defaults(task: str) -> dict[str, Any]:
    """The settings of a task at their defaults, as JSON has them; None for required ones."""
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for name, field in _registered(task).settings.model_fields.items()
    }


def _read(settings: Any) -> Any:
    """Settings as JSON has them are of the model that their name says."""
    if isinstance(settings, dict) and "name" in settings:
        return _registered(settings["name"]).settings(**settings)
    return settings


TaskSettings = Annotated[SerializeAsAny[Settings], BeforeValidator(_read)]
"""The settings of any task, told apart by their `name`."""


def _wrong(task: str, model: type[Settings], error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        has = ", ".join(known for known in model.model_fields if known != "name")
        return f"task {task!r} has no option {name!r}; it has {has}"
    return f"task {task!r}: {refusal(model, error)}"
