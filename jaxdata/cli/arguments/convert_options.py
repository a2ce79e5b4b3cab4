"""The options of `jaxdata convert`.

Options that decide what becomes of the text are fields of the converter's models (see
`converter.options`) and are generated from them. The others are declared here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

from jaxdata.base.hashing import RULES
from jaxdata.converter.inputs.streams import EXPANSION
from jaxdata.converter.options import (
    CLEANING,
    EXECUTION,
    INPUT,
    LIMITS,
    OPTIONS,
    SPLITS,
    TASK,
    Option,
    kinds_of,
)
from jaxdata.converter.parameters import options
from jaxdata.converter.tasks.registry import task_names
from jaxdata.foreign.cerebras import read_params
from jaxdata.tokenizers.encoders import EncoderName

_HEADINGS = [OPTIONS, INPUT, TASK, CLEANING, SPLITS, LIMITS, EXECUTION]


class ConvertCommand(click.Command):
    """`jaxdata convert`, with the options of the converter's models and of every task."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        shown = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        for heading, some in groupby(shown, key=_heading):
            with formatter.section(heading):
                formatter.write_dl(list(filter(None, (one.get_help_record(ctx) for one in some))))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options by heading; the same objects all through one invocation."""
        made: list[click.Parameter] | None = ctx.meta.get(__name__)
        if made is None:
            generated = map(_click_option, options().values())
            made = sorted([_task_option(), *super().get_params(ctx), *generated], key=_order)
            ctx.meta[__name__] = made
        return made


def _heading(parameter: click.Parameter) -> str:
    heading: str = getattr(parameter, "heading", OPTIONS)
    return heading


def _order(parameter: click.Parameter) -> tuple[int, bool]:
    return _HEADINGS.index(_heading(parameter)), parameter.name == "help"


def _task_option() -> click.Option:
    made = click.Option(
        ["--task"],
        type=click.Choice(list(task_names())),
        default="lm",
        show_default=True,
        is_eager=True,
        help=" ".join(f"{name}: {says}." for name, says in task_names().items()),
    )
    made.heading = TASK  # type: ignore[attr-defined]
    return made


def _click_option(one: Option) -> click.Option:
    """The option of a field: its name, help, metavar and type; None where it is not given."""
    made = click.Option(
        [f"--{one.name.replace('_', '-')}"],
        help=one.help,
        hidden=bool(one.told("hidden")),
        default=None,
        **_values(one),
    )
    made.heading = one.told("heading")  # type: ignore[attr-defined]
    return made


def _values(one: Option) -> dict[str, Any]:
    """What click is told of an option's values."""
    metavar = one.told("metavar")
    first, *others = (kind for kind in kinds_of(one.field) if kind is not NoneType)
    if first is bool:
        return {"is_flag": True}
    if others:
        return {"type": token}
    if get_origin(first) is Literal:
        return {"type": click.Choice(get_args(first), case_sensitive=False)}
    if first in (int, float):
        return {"type": _number(one, whole=first is int)}
    if get_origin(first) is dict:
        return {"type": _json, "metavar": metavar}
    return {"type": _unescaped if one.told("escapes") else str, "metavar": metavar or "TEXT"}


def _number(one: Option, *, whole: bool) -> click.ParamType[Any]:
    facts = one.field.metadata
    least = next((fact.ge for fact in facts if hasattr(fact, "ge")), one.told("least"))
    most = next((fact.le for fact in facts if hasattr(fact, "le")), None)
    if least is None and most is None:
        return click.INT if whole else click.FLOAT
    return click.IntRange(least, most) if whole else click.FloatRange(least, most)


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


def _cerebras(context: click.Context, _: Any, value: str | None) -> None:
    """Take defaults from a file: the command line overrides it, and it overrides our defaults."""
    if value is None:
        return
    task = context.params.get("task")
    typed = context.get_parameter_source("task") == click.core.ParameterSource.COMMANDLINE
    found = read_params(value, task if typed else None)
    context.params["task"] = found.options["task"]
    length = {"stats_seq_len": found.seq_len} if found.seq_len else {}
    context.default_map = {**(context.default_map or {}), **found.options, **length}
    for note in found.notes:
        click.echo(f"{value}: {note}", err=True)


_DECLARED: dict[str, list[Callable[[Any], Any]]] = {
    INPUT: [
        click.option(
            "--files-from",
            multiple=True,
            metavar="FILE",
            help="File that lists more inputs, one per line. May be given several times.",
        ),
        click.option(
            "--text-suffix",
            default="",
            metavar="SUFFIXES",
            help="More suffixes of text files, separated by commas (.py,.rs): each file is a "
            "document.",
        ),
    ],
    TASK: [
        click.option(
            "--cerebras-params",
            metavar="FILE",
            callback=_cerebras,
            expose_value=False,
            help="YAML file of Cerebras' preprocessing. Options on the command line override it.",
        ),
        click.option(
            "--template-text-ok",
            is_flag=True,
            help="Let the chat template, prefixes and separator write what looks like a special "
            "token (<|im_start|>) and is none of the tokenizer. Without it, that is refused.",
        ),
    ],
    SPLITS: [
        click.option(
            "--split",
            default="train",
            show_default=True,
            help="Split of the documents: train, val, …",
        ),
        click.option(
            "--append",
            is_flag=True,
            help="Append documents from new files to an existing source. Running jobs are "
            "unaffected.",
        ),
        click.option(
            "--dedup",
            type=click.Choice(["exact", *(f"exact:{rule}" for rule in RULES)]),
            help="Make the view 'exact', which leaves out documents that are exact copies: but for "
            "whitespace, or by another rule of jaxdata dedup --exact. All stay on disk.",
        ),
        click.option(
            "--minhash",
            is_flag=True,
            help="Keep hashes of each document (128 bytes), with which jaxdata dedup hashes no "
            "text.",
        ),
    ],
    LIMITS: [
        click.option(
            "--max-expansion",
            type=click.IntRange(1),
            default=EXPANSION,
            show_default=True,
            help="Reject a compressed file that expands to more than this many times its size.",
        ),
    ],
    EXECUTION: [
        click.option(
            "--workers", type=click.IntRange(1), help="Worker processes.  [default: one per core]"
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Run on this machine, or on a Ray cluster whose nodes all see inputs and output.",
        ),
        click.option(
            "--encoder",
            type=click.Choice(get_args(EncoderName)),
            default="auto",
            show_default=True,
            help="What encodes texts, always with the ids of the tokenizer's library: the library "
            "itself, a faster one for byte-level BPE (jaxdata[fast]), words for SentencePiece BPE, "
            "or whichever can; verify encodes every text twice and compares.",
        ),
        click.option(
            "--ray-address",
            metavar="HOST:PORT",
            help="Ray cluster to join.  [default: $RAY_ADDRESS, or the one this machine is in]",
        ),
        click.option(
            "--resume", is_flag=True, help="Resume an unfinished conversion; fail if there is none."
        ),
        click.option(
            "--verify-inputs",
            is_flag=True,
            help="Read inputs that were converted before again, and compare them with what was "
            "read then. Without it only files are read again that may have changed.",
        ),
        click.option(
            "--stats", is_flag=True, help="At the end, print the whole table of what was counted."
        ),
        click.option(
            "--stats-seq-len",
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Also rows of this length and their padding for each packing strategy.",
        ),
    ],
}
"""The options that no model has, by heading."""


def declared(command: Any) -> Any:
    """Give a command the options that no model has."""
    for heading, decorators in reversed(_DECLARED.items()):
        for decorate in reversed(decorators):
            command = decorate(command)
            command.__click_params__[-1].heading = heading
    return command
