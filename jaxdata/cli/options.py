"""Commands, made of functions: an argument that `setting` declares is an option, another a word.

Few options are wanted by most people. A `Command` may name these: what else it can be told are
settings, which are given by `--set NAME=VALUE`. `--help-all` lists all, `--task T --help` those of
a task.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from jaxdata.base.errors import nearest
from jaxdata.base.numbers import kinds_of, types_of
from jaxdata.base.settings import setting, told

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

    by_set = False
    """whether it is given by `--set NAME=VALUE`, not by a word of its own"""

    def __init__(
        self, *given: Any, heading: str = "", tasks: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self.heading, self.tasks = heading, tasks or {}

    def of_set(self) -> "Setting":
        """The same, given by `--set`."""
        made = copy(self)
        made.by_set, made.secondary_opts = True, []
        made.opts = [f"--set {self.name}={'true' if self.is_flag else ''}"]
        return made

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """See `click.Option`."""
        if not self.by_set:
            super().add_to_parser(parser, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """See `click.Option`; of `--set` the value that is given last."""
        if self.by_set:
            pairs = (pair.partition("=") for pair in opts.get("set", ()))
            values = [value for name, _, value in pairs if name == self.name]
            opts = {self.name: values if self.multiple else values[-1]} if values else {}
        return super().consume_value(ctx, opts)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option`."""
        typed, says = super().get_help_record(ctx) or ("", "")
        return (typed.replace("= ", "="), says) if typed else None


class Command(click.Command):
    """A command whose help fits a screen.

    Args:
        *given: as of `click.Command`.
        front: the names of the options that `--help` shows, in this order; none: all of them.
        also: the names of further options. With a `front`, all others are given by `--set`.
        headings: those of `--help-all`, in this order; others follow.
        generated: makes further options, when the command is used.
        **more: as of `click.Command`.
    """

    injected: tuple[str, ...] = ()
    """arguments of its function that nobody types"""

    def __init__(
        self,
        *given: Any,
        front: Sequence[str] = (),
        also: Collection[str] = (),
        headings: Collection[str] = (),
        generated: Callable[[], Sequence[click.Option]] = tuple,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self.front = [*front, "set", "help_all"] if front else []
        self._also, self._headings, self._generated = also, headings, generated
        if front:
            how = dict[str, Any](multiple=True, metavar="NAME=VALUE", callback=_check_names)
            says = "Any setting of --help-all; may be repeated."
            self.params.append(click.Option(["--set"], help=says, expose_value=False, **how))
            how = {"is_flag": True, "is_eager": True, "callback": _help_all}
            says = "Show every option and setting."
            self.params.append(click.Option(["--help-all"], help=says, expose_value=False, **how))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its parameters, the same all through one invocation."""
        key = f"{__name__}.{id(self)}"
        if key not in ctx.meta:
            own, words = [*super().get_params(ctx), *self._generated()], {*self.front, *self._also}
            ctx.meta[key] = [
                one.of_set()
                if self.front and isinstance(one, Setting) and one.name not in words
                else one
                for one in own
            ]
        found: list[click.Parameter] = ctx.meta[key]
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; of a setting that is typed as an option the error says how."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in _names_of_settings(ctx):
                raise
            says = f"{error.option_name} is a setting: give it as --set {name}=VALUE"
            raise click.UsageError(says, ctx) from None

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """See `click.Command`; it waits for `--task`, wherever that is typed."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.is_eager = False
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are asked for, under their headings."""
        lists: dict[str, list[click.Option]] = {name: [] for name in ("Options", *self._headings)}
        task = ctx.params["task"] if was_typed(ctx, "task") else None
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (heading := self._heading(one, ctx, task)):
                shown = copy(one)
                shown.help = getattr(one, "tasks", {}).get(task, one.help)
                lists.setdefault(heading, []).append(shown)
        order = {name: place for place, name in enumerate(self.front)}
        lists["Options"].sort(key=lambda one: order.get(one.name or "", len(order)))
        for heading, some in lists.items():
            if some:
                with formatter.section(heading):
                    formatter.write_dl([*filter(None, (one.get_help_record(ctx) for one in some))])

    def _heading(self, one: click.Option, context: click.Context, task: str | None) -> str:
        """The list that an option is in; none if nobody asks for it."""
        tasks = getattr(one, "tasks", {})
        if task and tasks and task not in tasks:
            return ""
        if not self.front or one.name in self.front or "--help" in one.opts:
            return "Options"
        if context.meta.get(_ALL):
            return getattr(one, "heading", "") or "More options"
        return f"Task {task}" if task in tasks else ""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and what shows the other options."""
        super().format_epilog(ctx, formatter)
        if self.front and not ctx.meta.get(_ALL):
            tasks, path = (
                any(getattr(p, "tasks", {}) for p in self.get_params(ctx)),
                ctx.command_path,
            )
            more = f"Options of a task: {path} --task T --help; all: --help-all"
            formatter.write_paragraph()
            formatter.write_text(more if tasks else f"All options: {path} --help-all")


def _names_of_settings(context: click.Context) -> list[str]:
    every = context.command.get_params(context)
    return [str(one.name) for one in every if getattr(one, "by_set", False)]


def _check_names(context: click.Context, _: click.Parameter, pairs: Sequence[str]) -> None:
    known = _names_of_settings(context)
    for pair in pairs:
        name, equals, _rest = pair.partition("=")
        if name not in known:
            flags = [each.opts[-1] for each in context.command.get_params(context)]
            meant = nearest(name, [*known, *flags]) or ": see --help-all"
            raise click.BadParameter(f"there is no setting {name!r}{meant}")
        if not equals:
            raise click.BadParameter(f"{pair!r}: expected NAME=VALUE")


def _help_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()


def was_typed(context: click.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def refuse(names: Collection[str], message: str) -> None:
    """Refuse options of the command under way that were typed; `{}` is what was."""
    context = click.get_current_context()
    for one in context.command.get_params(context):
        if one.name in names and was_typed(context, one.name):
            raise click.UsageError(message.replace("{}", one.opts[-1]))


@contextmanager
def resumable(kept: str = "work") -> Iterator[None]:
    """What a Ctrl-C interrupts, and the same command resumes; finished work is kept, or files."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort(f"Finished {kept} is kept: the same command resumes") from None


JSON = setting(False, "Print one JSON object.", flag="--json")
"""An argument of every command that has this option."""


def command(
    *, options: Sequence[click.Option] = (), cls: type[Command] = Command, **more: Any
) -> Callable[[Function], Command]:
    """Make a command of a function.

    An argument whose default is a `setting` is an option; another one is a word that is typed bare,
    several of them where it is a tuple.

    Args:
        options: further options, which the function takes by `**`.
        cls: the class of the command.
        **more: as of the class.
    """

    def made(function: Function) -> Command:
        types, params = types_of(function), list[click.Parameter]()
        for name, given in inspect.signature(function).parameters.items():
            if isinstance(given.default, FieldInfo):
                field = FieldInfo.from_annotated_attribute(types[name], given.default)
                params.append(option(name, field))
            elif given.kind is given.POSITIONAL_OR_KEYWORD and name not in cls.injected:
                params.append(_word(name, types[name], given.default))
        about = {"help": inspect.getdoc(function), "callback": function, **more}
        return cls(function.__name__, params=[*params, *options], **about)

    return made


def _word(name: str, kind: Any, default: Any) -> click.Argument:
    how: dict[str, Any] = {"required": default is inspect.Parameter.empty}
    if not how["required"]:
        how["default"] = default
    if get_origin(kind) is tuple:
        how |= {"nargs": -1, "metavar": f"{name.removesuffix('s').upper()}..."}
    elif get_origin(kind) is Literal:
        how["type"] = click.Choice(get_args(kind))
    return click.Argument([name], **how)


def options_of(
    function: Function, heading: str = "", /, **about: str | Mapping[str, Any]
) -> Iterator[click.Option]:
    """Some arguments of a function as options, of its types and defaults.

    Args:
        function: its signature.
        heading: where `--help-all` lists them.
        **about: by the name of an argument its help, or `help` and what else :func:`setting` takes.
    """
    types, parameters = types_of(function), inspect.signature(function).parameters
    for name, given in about.items():
        more = {"help": given} if isinstance(given, str) else dict(given)
        declared = setting(parameters[name].default, more.pop("help"), **more)
        yield option(name, FieldInfo.from_annotated_attribute(types[name], declared), heading)


def option(name: str, field: FieldInfo, heading: str = "", **more: Any) -> Setting:
    """A field as an option; None where it is not typed, if its default is `shown` otherwise.

    What `more` says, as of `Setting`, counts more.
    """
    shown, flag = told(field, "shown"), f"--{name.replace('_', '-')}"
    default = None if shown else field.get_default(call_default_factory=True)
    about: dict[str, Any] = {"required": True}
    if not field.is_required():
        about = {"default": default, "show_default": default not in (None, False)}
    if field.default is True or {*kinds_of(field.annotation)} == {bool, NoneType}:
        flags = [f"{flag}/--no-{flag[2:]}"]
    else:
        flags = (told(field, "flag") or flag).split()
    about["help"] = f"{field.description}{f'  [default: {shown}]' if shown else ''}"
    about |= {"heading": told(field, "heading") or heading, **_values(field), **more}
    return Setting([*flags, name], **about)


def _values(field: FieldInfo) -> dict[str, Any]:
    """What click is told of the values of a field: their type, and what `--help` calls them."""
    kinds = [kind for kind in kinds_of(field.annotation) if kind is not NoneType]
    first, of, metavar = kinds[0], get_origin(kinds[0]), told(field, "metavar")
    if kind := told(field, "type"):
        return {"type": kind, "metavar": metavar}
    if first is bool:
        return {"is_flag": True}
    if of is tuple and not field.metadata:
        return {"multiple": True, "metavar": metavar}
    if {*kinds} == {int, str}:
        return {"type": token, "metavar": metavar}
    if of is Literal:
        return {"type": click.Choice(get_args(first), case_sensitive=False), "metavar": metavar}
    if first in (int, float):
        return {"type": _number(field, whole=first is int), "metavar": metavar or "N"}
    if of in (Sequence, Iterable, list):
        return {"type": names, "metavar": metavar or "A,B"}
    if first is Path:
        return {"type": click.Path(path_type=Path), "metavar": metavar}
    if told(field, "escapes"):
        return {"type": _unescaped, "metavar": metavar or "TEXT"}
    return {"type": str, "metavar": metavar}


def _number(field: FieldInfo, *, whole: bool) -> click.ParamType[Any]:
    least = next((fact.ge for fact in field.metadata if hasattr(fact, "ge")), None)
    most = next((fact.le for fact in field.metadata if hasattr(fact, "le")), None)
    if least is None and most is None:
        return click.INT if whole else click.FLOAT
    return click.IntRange(least, most) if whole else click.FloatRange(least, most)


def names(value: str | Sequence[str]) -> list[str]:
    """Return names that are typed with commas between them."""
    given = value.split(",") if isinstance(value, str) else value
    return [name.strip() for name in given if name.strip()]


_DIGITS = 1_000
"""of a number of a document: beyond some thousands Python refuses to read them"""


def document_named(text: str, said: str) -> tuple[str, int]:
    """The source and the number of what is typed as `[SPLIT/]SOURCE:ID`; `said` is for errors."""
    name, _, number = text.rpartition(":")
    if not (name and number.isdecimal() and len(number) <= _DIGITS):
        raise click.UsageError(f"{said}: expected [SPLIT/]SOURCE:ID, like web:17 or val/web:17")
    return name, int(number)


def token(value: str | int) -> str | int:
    """Return the text of a token, or its id."""
    return int(value) if str(value).isdecimal() else value


def _unescaped(value: str) -> str:
    r"""Return what is typed with \n and \t for new lines and tabs."""
    return value.replace(r"\n", "\n").replace(r"\t", "\t")
