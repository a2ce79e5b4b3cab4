"""CONFIG and overrides, the arguments of every command about a run; and `jaxdata config`."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import click

if TYPE_CHECKING:
    from jaxdata.config import Config

Function = Callable[..., Any]


class RunCommand(click.Command):
    """A command whose options are its own and the fields of a config."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; what is neither an option nor a field is no such option."""
        rest = super().parse_args(ctx, args)
        words = [ctx.params.get("path") or "", *(ctx.params.get("overrides") or ())]
        given = [word for word in words if word.startswith("--")]
        if given:
            from jaxdata.config import Config

            own = [name for option in self.params for name in option.opts if name[:2] == "--"]
            known = [*own, *(f"--{name}" for name in Config.model_fields)]
            for name in (text.partition("=")[0].partition(".")[0] for text in given):
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    raise click.NoSuchOption(name, possibilities=near, ctx=ctx)
        return rest


class _Settings(TypedDict):
    cls: type[RunCommand]
    context_settings: dict[str, Any]


OVERRIDABLE: _Settings = {
    "cls": RunCommand,
    "context_settings": {"ignore_unknown_options": True},
}
"""Arguments of `click.command` that leave unknown options to :func:`read_config`."""


def takes_config(function: Function) -> Function:
    """Give a command its arguments `config`, bare or as `--config`, and `overrides`."""

    @may_take_config
    @functools.wraps(function)
    def with_config(config: str | None, **others: Any) -> Any:
        if config is None:
            from jaxdata.config.config_reader import packaged_configs

            raise click.UsageError(
                "give CONFIG: a YAML file, or the name of a config shipped with jaxdata: "
                + ", ".join(sorted(packaged_configs()))
            )
        return function(config=config, **others)

    return with_config


def may_take_config(function: Function) -> Function:
    """The same for a command that does without: then `config` is None."""

    @functools.wraps(function)
    def with_config(config: str | None, overrides: tuple[str, ...], **others: Any) -> Any:
        if config is None and (place := _bare(overrides)) is not None:
            config, overrides = overrides[place], overrides[:place] + overrides[place + 1 :]
        return function(config=config, overrides=overrides, **others)

    arguments = click.argument(
        "overrides", nargs=-1, type=click.UNPROCESSED, metavar="CONFIG [--FIELD VALUE]..."
    )
    option = click.option(
        "--config", help="CONFIG: a YAML file, or the name of a config shipped with jaxdata."
    )
    return option(arguments(with_config))


def _bare(overrides: tuple[str, ...]) -> int | None:
    """The place of the first text that is neither a field nor the value of one."""
    place = 0
    while place < len(overrides):
        text = overrides[place]
        if not text.startswith("-"):
            return place
        place += 1 if "=" in text else 2
    return None


def read_config(config: str, overrides: tuple[str, ...]) -> Config:
    """Read a config, with the fields set on the command line."""
    from jaxdata.config import load_config, parse_overrides

    return load_config(config, parse_overrides(overrides))


_EPILOG = """\b
Examples:
  jaxdata config                              the fields and their defaults
  jaxdata config --all                        those for experts, too
  jaxdata config pretrain --seed 1            a config, and where it says what
  jaxdata config pretrain > mine.yaml         a config of your own, with these fields
  jaxdata config --schema > schema.json       for editors; a YAML file names it in its first line:
                                              # yaml-language-server: $schema=schema.json
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@may_take_config
@click.option("--all", "whole", is_flag=True, help="Print the fields for experts, too.")
@click.option("--schema", is_flag=True, help="Print a JSON Schema of all fields.")
def config(config: str | None, whole: bool, schema: bool, overrides: tuple[str, ...]) -> None:
    """Print the fields of a config: what each means, its value, its default and where it was set.

    What is printed is a config itself. Without CONFIG, fields have their defaults. Fields for
    experts are printed where CONFIG sets them, or all of them with --all.
    """
    if schema:
        from jaxdata.config.annotated import config_schema

        click.echo(json.dumps(config_schema(), indent=1))
        return
    click.echo(_annotated(config, overrides, whole), nl=False)


def _annotated(name: str | None, overrides: tuple[str, ...], whole: bool) -> str:
    from jaxdata.config import parse_overrides
    from jaxdata.config.annotated import annotated, defaults
    from jaxdata.config.config_reader import read_config_values
    from jaxdata.look.terminal import printable_lines

    given = parse_overrides(overrides)
    if name is None and not given:
        return defaults(whole=whole)
    read = read_config_values({} if name is None else name, given)
    return printable_lines(annotated(*read, whole=whole))
