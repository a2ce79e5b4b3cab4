"""Layouts by name: of the registry, with options, and functions of your own in a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from inspect import isclass
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.feed.layouts.base import Layout, native
from jaxdata.feed.layouts.trainers import HuggingFace, Megatron, maxtext

LAYOUTS: dict[str, Layout] = {
    "jaxdata": native,
    "maxtext": maxtext,
    "hf": HuggingFace(),
    "megatron": Megatron(),
}
Named = str | Mapping[str, Any] | Layout
"""a name, `{name: {option: value}}`, or a layout itself"""


def layout(given: Named) -> Layout:
    """The layout that is meant.

    Args:
        given: a name of the registry; `"module:function"`, which imports the module; either of
            them with options, `{"megatron": {"cu_seqlens": True}}`; or a function of a batch.

    Raises:
        InputError: there is no such layout, or it has no such option.

    >>> layout({"megatron": {"cu_seqlens": True}})
    Megatron(attention_mask=None, cu_seqlens=True)
    """
    if callable(given):
        return given
    named = check_named(given)
    (name, options), *_ = [(named, {})] if isinstance(named, str) else named.items()
    found: Any = LAYOUTS[name] if name in LAYOUTS else imported(name)
    try:
        chosen: Layout = _with_options(found, options)
    except TypeError as error:
        raise InputError(f"layout={given!r}: {error}") from None
    return chosen


def _with_options(found: Any, options: Mapping[str, Any]) -> Any:
    if isclass(found):
        return found(**options)
    if not options:
        return found
    how: Any = replace if is_dataclass(found) else partial
    return how(found, **options)


def check_named(given: Any) -> str | dict[str, Any]:
    """A name of a layout, perhaps with options; imports nothing.

    Raises:
        InputError: it names none, or an option that it does not have.
    """
    name, options = given, dict[str, Any]()
    if isinstance(given, Mapping) and len(given) == 1:
        name, options = next(iter(given.items()))
    if not isinstance(name, str) or not (name in LAYOUTS or _is_place(name)):
        raise InputError(
            f"layout={given!r}: expected one of {', '.join(map(repr, LAYOUTS))}, 'module:function' "
            "for one of your own, {name: {option: value}}, or in Python a function of a batch"
        )
    options = {} if options is None else options
    known = _options(name)
    if not isinstance(options, Mapping) or (known is not None and set(options) - set(known)):
        has = f"options are {', '.join(known)}" if known else "it has no options"
        raise InputError(f"layout={given!r}: {has}; expected {{name: {{option: value}}}}")
    for option, value in options.items():
        if known is not None and not isinstance(value, bool):
            raise InputError(f"layout={given!r}: {option} is {value!r}, expected true or false")
    return name if not options else {name: dict(options)}


def check_layout(given: Named, on_host: bool) -> Layout:
    """A layout, refused for batches that devices expand unless it is the native one."""
    found = layout(given)
    if not on_host and found is not native:
        raise InputError(
            f"layout={given!r} is made on the host, but expand='device' makes the arrays of layout "
            "'jaxdata' on devices: remove one of them, or rename arrays in the jitted step"
        )
    return found


def stored_layout(given: Named) -> Layout:
    """The layout for rows that are written: without masks that nobody asked for.

    A mask of a row has as many numbers as the square of its tokens, and can be made of them again.
    """
    found = layout(given)
    if isinstance(found, Megatron) and found.attention_mask is None:
        return replace(found, attention_mask=False)
    return found


def _options(name: str) -> list[str] | None:
    """The options of a layout of the registry; None for one of the user's."""
    if name not in LAYOUTS:
        return None
    found: Any = LAYOUTS[name]
    return [each.name for each in fields(found)] if is_dataclass(found) else []


def imported(place: str, argument: str = "layout=") -> Any:
    """What `module:function` names, imported.

    Raises:
        InputError: there is no such module, or no such function in it.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name) if _is_place(place) else None
    except ImportError as error:
        raise InputError(
            f"{argument}{place!r}: {error}. Set PYTHONPATH to the folder that {module}.py is in"
        ) from None
    except AttributeError:
        raise InputError(f"{argument}{place!r}: {module} has no {name!r}") from None
    if not callable(found):
        raise InputError(f"{argument}{place!r} is {found!r}: expected module:function")
    return found


def _is_place(name: str) -> bool:
    """Whether a name says `module:function`."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))
