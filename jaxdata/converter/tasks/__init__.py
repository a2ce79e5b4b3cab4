"""What a record becomes: plain text, prompts and answers, gaps to fill, preferences.

In the order in which data passes:

- `base`: the contract; `registry`: the tasks there are.
- `lm`, `sft`, `fim`, `dpo`, `ids`: a task each, with its settings.
- `per_token`: columns of one value a token, beside ids.
- `fields`, `conversation_turns`: the texts of a record, written as prompts and answers.
- `random_choice`: chance that depends on content and seed alone.
- `spans`, `encoding`: texts to tokens and loss masks.
- `text_pieces`, `turn_truncation`: what becomes of that which is longer than a context.

To add a task, add a file with its settings, its class and a call of `register`.
"""

from jaxdata.converter.tasks.base import (
    Dropped,
    Encoded,
    Prepared,
    Record,
    Settings,
    Task,
    Unencodable,
)
from jaxdata.converter.tasks.registry import make_settings, make_task

__all__ = [
    "Dropped",
    "Encoded",
    "Prepared",
    "Record",
    "Settings",
    "Task",
    "Unencodable",
    "make_settings",
    "make_task",
]
