"""Options of commands, made from fields of settings, or from arguments of a function."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jaxdata.base.numbers import kinds_of, types_of
from jaxdata.base.settings import told

Function = Callable[..., Any]


def options(model: type[BaseModel]) -> Callable[[Function], Function]:
    """Give a command the fields of a model as options.

    Where another default is `shown` than that of the field, the command is given None.
    """

    def decorate(command: Function) -> Function:
        for name, field in reversed(model.model_fields.items()):
            more = {"default": None} if told(field, "shown") else {}
            command = _added(command, name, field, more)
        return command

    return decorate


def options_of(
    function: Function, **about: str | tuple[str, int] | dict[str, Any]
) -> Callable[[Function], Function]:
    """Give a command some arguments of a function as options.

    Args:
        function: its signature has their types and defaults.
        **about: by the name of an argument its help; with it the least value, or what click is told
            otherwise.
    """
    types, parameters = types_of(function), inspect.signature(function).parameters

    def decorate(command: Function) -> Function:
        for name, given in reversed(about.items()):
            if isinstance(given, tuple):
                given = {"help": given[0], "type": click.IntRange(given[1])}
            more = {"help": given} if isinstance(given, str) else given
            field = FieldInfo(annotation=types[name], default=parameters[name].default)
            command = _added(command, name, field, more)
        return command

    return decorate


def _added(command: Function, name: str, field: FieldInfo, more: dict[str, Any]) -> Function:
    default = None if field.default == () else field.default
    shown = default is not None and default is not False
    told_of = {"default": default, "show_default": shown, **values_of(field), **more}
    return click.option(flag_of(name, field), name, **told_of)(command)


def flag_of(name: str, field: FieldInfo) -> str:
    """What is typed for a field."""
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if field.default is True else f"--{flag}"


def values_of(field: FieldInfo) -> dict[str, Any]:
    """What click is told of the values of a field."""
    shown = told(field, "shown")
    default = f"  [default: {shown}]" if shown else ""
    found = {"help": f"{field.description}{default}", "hidden": bool(told(field, "hidden"))}
    kinds = [kind for kind in kinds_of(field.annotation) if kind is not NoneType]
    first = kinds[0]
    if first is bool:
        return {**found, "is_flag": True}
    if {*kinds} == {int, str}:
        return {**found, "type": token}
    if get_origin(first) is Literal:
        return {**found, "type": click.Choice(get_args(first), case_sensitive=False)}
    if first in (int, float):
        return {**found, "type": _number(field, whole=first is int)}
    found["metavar"] = told(field, "metavar")
    if get_origin(first) is dict:
        return {**found, "type": _json}
    if told(field, "escapes"):
        return {**found, "type": _unescaped, "metavar": found["metavar"] or "TEXT"}
    return {**found, "type": str}


def _number(field: FieldInfo, *, whole: bool) -> click.ParamType[Any]:
    least = next((fact.ge for fact in field.metadata if hasattr(fact, "ge")), None)
    most = next((fact.le for fact in field.metadata if hasattr(fact, "le")), None)
    if least is None and most is None:
        return click.INT if whole else click.FLOAT
    return click.IntRange(least, most) if whole else click.FloatRange(least, most)


class Names(click.ParamType[Any]):
    """Names separated by commas."""

    name = "A,B"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> list[str]:
        return [name.strip() for name in value.split(",") if name.strip()]


def token(value: str | int) -> str | int:
    """Return the text of a token, or its id."""
    return int(value) if str(value).isdecimal() else value


def token_texts(value: str | list[str]) -> list[str]:
    """Return the texts of tokens, typed with commas between them."""
    return [one.strip() for one in value.split(",")] if isinstance(value, str) else list(value)


def _unescaped(value: str) -> str:
    r"""Return what is typed with \n and \t for new lines and tabs."""
    return value.replace(r"\n", "\n").replace(r"\t", "\t")


def _json(value: str) -> dict[str, Any]:
    try:
        given = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise click.BadParameter('expected an object, such as {"enable_thinking": false}')
    return given
