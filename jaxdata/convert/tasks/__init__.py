"""What a record becomes: plain text, prompts and answers, gaps to fill, preferences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxdata.convert.tasks.base import (
    Dropped,
    Encoded,
    Record,
    Settings,
    Task,
    token_dtype,
)
from jaxdata.convert.tasks.dpo import DpoTask
from jaxdata.convert.tasks.fim import FimTask
from jaxdata.convert.tasks.lm import LmSettings, LmTask
from jaxdata.convert.tasks.settings import TaskOptions, TaskSettings, defaults, make_settings
from jaxdata.convert.tasks.sft import SftTask
from jaxdata.tokenizers import Tokenizer

__all__ = [
    "Dropped",
    "Encoded",
    "LmSettings",
    "Record",
    "Settings",
    "Task",
    "TaskOptions",
    "TaskSettings",
    "defaults",
    "make_settings",
    "make_task",
    "token_dtype",
]

_TASKS: dict[str, Any] = {"lm": LmTask, "sft": SftTask, "fim": FimTask, "dpo": DpoTask}


def make_task(
    settings: TaskSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None = None
) -> Task:
    """Make the task of some settings; `clean` is done to every text before all else.

    Raises:
        InputError: the tokenizer lacks what the task needs, or a chat template does not work.
        MissingExtra: jinja2, which chat templates need, is not installed.
    """
    task: Task = _TASKS[settings.name](settings, tokenizer, clean)
    return task
