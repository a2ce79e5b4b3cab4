"""The arguments of every command about a run: CONFIG, then any field of the config."""

from __future__ import annotations

import difflib
import functools
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
