"""A call of `convert` as text, for the history of a dataset."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

_SHOWN = 8
_PLAIN = str | int | float | bool | None
_UNSAID = ("progress", "command")


def call_text(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The call of a function with some arguments, without those that are its defaults.

    Of long lists the first are named, and of objects that are no values the type or name.

    >>> def convert(inputs, *, output, split="train", **options): ...
    >>> call_text(convert, {"inputs": ["a"], "output": "b", "split": "train", "bos": True})
    "jaxdata.convert(['a'], output='b', bos=True)"
    """
    known = inspect.signature(function).parameters
    said = []
    for name, value in arguments.items():
        if name in _UNSAID or (name in known and value == known[name].default):
            continue
        said.append(_text(value) if name == "inputs" else f"{name}={_text(value)}")
    return f"jaxdata.{function.__name__}({', '.join(said)})"


def _text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > _SHOWN else []
        return f"[{', '.join([*map(_text, value[:_SHOWN]), *more])}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(one)}' for key, one in value.items())}}}"
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return repr(name) if isinstance(name, str) else f"<{type(value).__name__}>"
