"""The options of `jaxdata convert` that tasks have."""

from __future__ import annotations

import json
from typing import Any

import click

from jaxdata.cli.groups import group
from jaxdata.convert.cerebras import read_params
from jaxdata.convert.tasks import TaskOptions

__all__ = ["given", "task_options", "token"]


def token(value: str | int) -> str | int:
    """Return the text of a token, or its id."""
    return int(value) if str(value).isdecimal() else value


def _text(_: Any, __: Any, value: str | None) -> str | None:
    r"""Return what is typed with \n and \t for new lines and tabs."""
    return value and value.replace(r"\n", "\n").replace(r"\t", "\t")


def _variables(_: Any, __: Any, value: str | None) -> dict[str, Any] | None:
    try:
        given = None if value is None else json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if given is not None and not isinstance(given, dict):
        raise click.BadParameter('expected an object, such as {"enable_thinking": false}')
    return given


def _option(name: str, says: str, **settings: Any) -> Any:
    return click.option(name, help=says, **settings)


def _cerebras(context: click.Context, _: Any, value: str | None) -> None:
    """Take defaults from a file: what is typed goes before it, and it before our defaults."""
    if value is None:
        return
    task = context.params.get("task")
    typed = context.get_parameter_source("task") == click.core.ParameterSource.COMMANDLINE
    found = read_params(value, task if typed else None)
    context.params["task"] = found.options["task"]
    context.default_map = {**(context.default_map or {}), **found.options}
    for note in found.notes:
        click.echo(f"{value}: {note}", err=True)


_RATE = click.FloatRange(0, 1)

task_options = group(
    "What records become",
    _option(
        "--task",
        "Plain text, prompts and answers, gaps to fill, preferences.",
        type=click.Choice(["lm", "sft", "fim", "dpo"]),
        default="lm",
        show_default=True,
        is_eager=True,
    ),
    _option(
        "--cerebras-params",
        "Parameters of Cerebras' preprocessing; options that are typed go before them.",
        metavar="FILE",
        callback=_cerebras,
        expose_value=False,
    ),
    _option(
        "--prompt-key",
        "sft, dpo: key of prompts. sft joins several (a,b), and a.b may go into a list of pairs.",
    ),
    _option("--completion-key", "sft: key of completions."),
    _option("--messages-key", "sft: key of conversations.  [default: what a record has]"),
    _option("--content-key", "sft: where messages have their text.  [default: content or value]"),
    _option(
        "--pairs",
        "sft: what several pairs of one record become.",
        type=click.Choice(["documents", "turns"]),
    ),
    _option("--train-on", "sft: the answers that have loss.", type=click.Choice(["all", "last"])),
    _option("--chosen-key", "dpo: key of the better answer.  [default: chosen]"),
    _option("--rejected-key", "dpo: key of the other one.  [default: rejected]"),
    _option(
        "--chat-template",
        "sft, dpo: a file of Jinja, 'tokenizer' or 'none'.  [default: the tokenizer's, if any]",
        metavar="FILE",
    ),
    _option(
        "--template-variables",
        "What else the template gets, an object of JSON.",
        metavar="JSON",
        callback=_variables,
    ),
    _option(
        "--allow-special",
        "Take texts of special tokens in messages for these; else such records are set aside.",
        is_flag=True,
        default=None,
    ),
    _option("--separator", "Without a template: between prompt and answer.", callback=_text),
    _option("--prompt-prefix", "Before each prompt, likewise.", callback=_text),
    _option("--completion-prefix", "Before each answer, likewise.", callback=_text),
    _option("--eod-after-prompt", "End prompts with EOD too.", is_flag=True, default=None),
    _option("--fim-rate", "fim: share of documents rearranged.  [default: 0.9]", type=_RATE),
    _option("--spm-rate", "Share of those with the suffix first.  [default: 0.5]", type=_RATE),
    _option("--fim-prefix", "Token before the prefix, by text or id.", type=token),
    _option("--fim-middle", "Token before the middle.", type=token),
    _option("--fim-suffix", "Token before the suffix.", type=token),
    _option("--short-rate", "lm: share of documents that are cut short.", type=_RATE),
    _option("--short-length", "They keep less than so many tokens.", type=click.IntRange(3)),
    _option("--seed", "fim, lm: what is drawn follows from it and the content.", type=int),
)
"""The options of all tasks, `--task` among them; one that is not given is None."""


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those of tasks that were not given."""
    return {
        name: value
        for name, value in options.items()
        if value is not None or name not in TaskOptions.__annotations__
    }
