"""CONFIG and overrides, the arguments of every command about a run; and `jaxdata config`."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import click

if TYPE_CHECKING:
    from jaxdata.config import Config

Function = Callable[..., Any]


class RunCommand(click.Command):
    """A command whose options are its own and the fields of a config."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; what is neither an option nor a field is no such option."""
        rest = super().parse_args(ctx, args)
        words = ctx.params.get("overrides") or ()
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

    @functools.wraps(function)
    def with_config(config: str | None, **others: Any) -> Any:
        if config is None:
            from jaxdata.config.config_reader import packaged_configs

            raise click.UsageError(
                "give CONFIG: a YAML file, or the name of a config shipped with jaxdata: "
                + ", ".join(sorted(packaged_configs()))
            )
        return function(config=config, **others)

    return may_take_config(with_config, "CONFIG")


def may_take_config(function: Function, shown: str = "[CONFIG]") -> Function:
    """The same for a command that does without: then `config` is None."""

    @functools.wraps(function)
    def with_config(config: str | None, overrides: tuple[str, ...], **others: Any) -> Any:
        if config is None:
            config, overrides = bare_word(overrides)
        return function(config=config, overrides=overrides, **others)

    return _declared(shown, with_config)


def _declared(shown: str, function: Function) -> Function:
    words = f"{shown} [--FIELD VALUE]..."
    arguments = click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar=words)
    option = click.option(
        "--config", help="CONFIG: a YAML file, or the name of a config shipped with jaxdata."
    )
    return option(arguments(function))


class Given(NamedTuple):
    """What a command is about: a dataset, a config, or a config for a dataset."""

    dataset: str | None
    config: str | None
    overrides: tuple[str, ...]

    def settings(self) -> Config:
        """The config; of a dataset alone, one with nothing but the dataset."""
        from jaxdata.config import load_config, parse_overrides

        named = {} if self.dataset is None else {"dataset": self.dataset}
        return load_config(self.config or {}, parse_overrides(self.overrides) | named)


def takes_data(function: Function) -> Function:
    """Give a command `given`: what is bare is a dataset or CONFIG; beside `--config` a dataset."""

    @functools.wraps(function)
    def with_data(config: str | None, overrides: tuple[str, ...], **others: Any) -> Any:
        from jaxdata.base.wording import nearest
        from jaxdata.config.config_reader import packaged_configs

        bare, overrides = bare_word(overrides)
        if bare is None and config is None:
            raise click.UsageError("give a DATASET, which is a folder or URL, or a CONFIG")
        if config is None and is_config(bare):
            bare, config = None, bare
        meant = "" if bare is None or Path(bare).exists() else nearest(bare, packaged_configs())
        if meant:
            raise click.UsageError(f"{bare} is neither a dataset nor a config{meant}")
        return function(given=Given(bare, config, overrides), **others)

    return _declared("DATASET|CONFIG", with_data)


def is_config(name: str | None) -> bool:
    """Whether a config is meant, by its suffix or as one that ships with jaxdata; else data is."""
    from jaxdata.config.config_reader import packaged_configs

    path = Path(name or "")
    shipped = name in packaged_configs() and not (path / "dataset.json").is_file()
    return shipped or path.suffix in (".yaml", ".yml", ".json")


def bare_word(words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The first text that is neither a field nor the value of one, and the other words."""
    place = 0
    while place < len(words):
        text = words[place]
        if not text.startswith("-"):
            return text, words[:place] + words[place + 1 :]
        place += 1 if "=" in text else 2
    return None, words


def read_config(config: str, overrides: tuple[str, ...]) -> Config:
    """Read a config, with the fields set on the command line."""
    from jaxdata.config import load_config, parse_overrides

    return load_config(config, parse_overrides(overrides))


_EPILOG = """\b
Examples:
  jaxdata config                          the fields and their defaults
  jaxdata config --all                    those for experts, too
  jaxdata config pretrain --seed 1        a config, and where it says what
  jaxdata config pretrain > mine.yaml     a config of your own
  jaxdata config --schema > schema.json   for editors; a YAML file begins with
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
