"""Which tasks there are: every module of this folder that registers one."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import to_jsonable_python

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import import_all
from jaxdata.base.settings import refusal
from jaxdata.converter.options import Option, options_of
from jaxdata.converter.tasks.base import Clean, Settings, Task
from jaxdata.tokenizers import Tokenizer

_DEFAULT = "lm"
_tasks: dict[str, tuple[type[Settings], type[Task]]] = {}


def register(settings: type[Settings], task: type[Task]) -> None:
    """Make a task known by the default of its settings' `name`; a module does so when imported."""
    _tasks[settings.model_fields["name"].default] = settings, task


def _registered(name: str) -> tuple[type[Settings], type[Task]]:
    names = task_names()
    if name not in names:
        raise InputError(f"task={name!r}; expected one of {', '.join(names)}")
    return _tasks[name]


def task_names() -> dict[str, str]:
    """The names of all tasks, the default first, and what records become in each."""
    import_all(__package__)
    names = sorted(_tasks, key=lambda name: (name != _DEFAULT, name))
    return {name: _tasks[name][0].makes for name in names}


def task_options(*names: str) -> dict[str, Option]:
    """The options of some tasks, or of all, by name."""
    own = {name: [_registered(name)[0]] for name in names or task_names()}
    return options_of(own) | options_of({"": [Settings]})


def check_takes(task: str, option: str, why: str) -> None:
    """Raise InputError unless a task has an option; `why` says why not every task has it."""
    _registered(task)
    takers = [name for name, (model, _) in _tasks.items() if option in model.model_fields]
    if task not in takers:
        raise InputError(
            f"{option} is for --task {' and '.join(sorted(takers))}, not for task {task!r}: {why}"
        )


def make_settings(task: str, tokenizer: Tokenizer, options: Mapping[str, Any]) -> Settings:
    """Make the settings of a task.

    Raises:
        InputError: there is no such task or option, or its value is wrong.
    """
    (model, _), given = _registered(task), dict(options)
    if given.get("text_key") == "text":  # as it is where nobody gave it
        del given["text_key"]
    try:
        return model(**model.completed(given, tokenizer))
    except ValidationError as error:
        raise InputError(f"task {task!r}: {refusal(model, error)}") from None


def make_task(settings: Settings, tokenizer: Tokenizer, clean: Clean | None = None) -> Task:
    """Make the task of some settings; `clean` is done to every text before all else.

    Raises:
        InputError: the tokenizer lacks what the task needs, or a chat template does not work.
        MissingExtra: jinja2, which chat templates need, is not installed.
    """
    return _registered(settings.name)[1](settings, tokenizer, clean)


def defaults(task: str, *models: type[BaseModel]) -> dict[str, Any]:
    """The fields of a task's settings, and of more models, that have a default, as JSON has it."""
    every = [_registered(task)[0], *models]
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for model in every
        for name, field in model.model_fields.items()
        if not field.is_required()
    }


def _read(settings: Any) -> Any:
    """Settings as JSON has them are of the model that their name says."""
    if isinstance(settings, dict) and "name" in settings:
        return _registered(settings["name"])[0](**settings)
    return settings


TaskSettings = Annotated[SerializeAsAny[Settings], BeforeValidator(_read)]
"""The settings of any task, told apart by their `name`."""
