"""Options of commands, made from fields of settings, or from arguments of a function.

Few are wanted by most people. A `Command` names these, and its `--help` shows no others: they are
settings, typed in the same way, which `--help-all` lists, and of a task `--task T --help`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jaxdata.base.numbers import kinds_of, types_of
from jaxdata.base.settings import told

Function = Callable[..., Any]
_ALL = f"{__name__}.all"
"""In `meta` of a context: whether every option is asked for."""


class Setting(click.Option):
    """An option that knows where `--help-all` lists it, and which tasks have it.

    Args:
        *given: as of `click.Option`.
        heading: of its list.
        tasks: its help in each of the tasks that have it; empty where all do.
        **more: as of `click.Option`.
    """

    def __init__(
        self, *given: Any, heading: str = "", tasks: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self.heading, self.tasks = heading, tasks or {}


class Command(click.Command):
    """A command whose help fits a screen.

    Args:
        *given: as of `click.Command`.
        front: the names of the options that `--help` shows, in this order.
        headings: those of `--help-all`, in this order; others follow.
        generated: makes further options, when the command is used.
        **more: as of `click.Command`.
    """

    def __init__(
        self,
        *given: Any,
        front: Sequence[str],
        headings: Collection[str] = (),
        generated: Callable[[], Sequence[click.Option]] = tuple,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self.front, self._headings = (*front, "help_all"), headings
        self._generated = generated
        every = {"is_flag": True, "is_eager": True, "expose_value": False}
        self.params.append(
            click.Option(["--help-all"], callback=_help_all, help="Show every option.", **every)
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its parameters, the same all through one invocation; all but the front are hidden."""
        found: list[click.Parameter] | None = ctx.meta.get(f"{__name__}.{self.name}")
        if found is None:
            generated = self._generated()
            for one in (*self.params, *generated):
                if isinstance(one, click.Option):
                    one.hidden = one.name not in self.front
            found = [*super().get_params(ctx), *generated]
            ctx.meta[f"{__name__}.{self.name}"] = found
        return found

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """See `click.Command`; it waits for `--task`, wherever that is typed."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.is_eager = False
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are asked for, under their headings."""
        lists: dict[str, list[click.Option]] = {name: [] for name in ("Options", *self._headings)}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (listed := _listed(one, ctx)):
                lists.setdefault(listed[0], []).append(listed[1])
        order = {name: place for place, name in enumerate(self.front)}
        lists["Options"].sort(key=lambda one: order.get(one.name or "", len(order)))
        for heading, some in lists.items():
            if some:
                with formatter.section(heading):
                    formatter.write_dl([*filter(None, (one.get_help_record(ctx) for one in some))])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and what shows the other options."""
        super().format_epilog(ctx, formatter)
        if not ctx.meta.get(_ALL):
            tasks = any(getattr(one, "tasks", None) for one in self.get_params(ctx))
            path = ctx.command_path
            more = f"Options of a task: {path} --task T --help; all: --help-all"
            formatter.write_paragraph()
            formatter.write_text(more if tasks else f"All options: {path} --help-all")


def _help_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()


def _listed(one: click.Option, context: click.Context) -> tuple[str, click.Option] | None:
    """The list that an option is in, and it as it is shown there; None if nobody asks for it."""
    task = context.params["task"] if was_typed(context, "task") else None
    every, tasks = context.meta.get(_ALL), getattr(one, "tasks", {})
    if (one.hidden and not (every or task in tasks)) or (task and tasks and task not in tasks):
        return None
    shown = copy(one)
    shown.hidden, shown.help = False, tasks.get(task, one.help)
    if not one.hidden:
        return "Options", shown
    return (getattr(one, "heading", "") or "More options") if every else f"Task {task}", shown


def was_typed(context: click.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def options(model: type[BaseModel], heading: str = "") -> Callable[[Function], Function]:
    """Give a command the fields of a model as options, under a heading of `--help-all`.

    Where another default is `shown` than that of the field, the command is given None.
    """

    def decorate(command: Function) -> Function:
        for name, field in reversed(model.model_fields.items()):
            more = {"default": None} if told(field, "shown") else {}
            command = _added(command, name, field, {"heading": heading, **more})
        return command

    return decorate


def options_of(
    function: Function, heading: str = "", /, **about: str | tuple[str, int] | dict[str, Any]
) -> Callable[[Function], Function]:
    """Give a command some arguments of a function as options.

    Args:
        function: its signature has their types and defaults.
        heading: where `--help-all` lists them.
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
            command = _added(command, name, field, {"heading": heading, **more})
        return command

    return decorate


def _added(command: Function, name: str, field: FieldInfo, more: dict[str, Any]) -> Function:
    default = None if field.default == () else field.default
    shown = default is not None and default is not False
    told_of = {"default": default, "show_default": shown, **values_of(field), **more}
    return click.option(flag_of(name, field), name, cls=Setting, **told_of)(command)


def flag_of(name: str, field: FieldInfo) -> str:
    """What is typed for a field."""
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if field.default is True else f"--{flag}"


def values_of(field: FieldInfo) -> dict[str, Any]:
    """What click is told of the values of a field."""
    shown = told(field, "shown")
    default = f"  [default: {shown}]" if shown else ""
    found = {"help": f"{field.description}{default}", "metavar": told(field, "metavar")}
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
