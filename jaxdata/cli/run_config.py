"""The arguments of every command about a run: `--config NAME`, then any field of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import click

if TYPE_CHECKING:
    from jaxdata.config import Config

Function = Callable[..., Any]


class _Settings(TypedDict):
    context_settings: dict[str, Any]


OVERRIDABLE: _Settings = {"context_settings": {"ignore_unknown_options": True}}
"""Arguments of `click.command` that leave unknown options to :func:`read_config`."""


def takes_config(function: Function) -> Function:
    """Give a command its arguments `config` and `overrides`."""
    overrides = click.argument(
        "overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--FIELD VALUE]..."
    )
    config = click.option(
        "--config", required=True, help="YAML file, or the name of a config shipped with jaxdata."
    )
    return config(overrides(function))


def read_config(config: str, overrides: tuple[str, ...]) -> Config:
    """Read a config, with the fields set on the command line."""
    from jaxdata.config import load_config, parse_overrides

    return load_config(config, parse_overrides(overrides))
