"""What a record becomes: plain text, prompts and answers, preferences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from jaxdata.convert.tasks.base import (
    Dropped,
    Encoded,
    Record,
    Settings,
    Task,
    token_dtype,
)
from jaxdata.convert.tasks.lm import LmSettings, LmTask
from jaxdata.tokenizers import Tokenizer

__all__ = [
    "Dropped",
    "Encoded",
    "LmSettings",
    "Record",
    "Settings",
    "Task",
    "TaskSettings",
    "make_task",
    "token_dtype",
]

TaskSettings = Annotated[LmSettings, Field()]
"""The settings of any task, told apart by their `name`."""


def make_task(
    settings: TaskSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None = None
) -> Task:
    """Make the task of some settings; `clean` is done to every text before all else."""
    return LmTask(settings, tokenizer, clean)
